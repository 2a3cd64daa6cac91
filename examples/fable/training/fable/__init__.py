"""A grammar of small stories: who wants what, what is in the way, who holds what, and how it ends."""
