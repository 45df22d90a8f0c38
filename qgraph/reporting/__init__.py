"""Rendering of JSON reports: pages, pictures, SARIF, JUnit."""
