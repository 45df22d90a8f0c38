"""Reports as people and code scanners see them: pages, pictures, SARIF; from the JSON documents."""
