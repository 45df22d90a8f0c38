"""Choosing, writing and committing drafts."""
