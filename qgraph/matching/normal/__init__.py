"""Normal forms: both models rewritten by exact rules before they are matched."""
