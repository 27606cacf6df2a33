"""Fast searches for translations: which one serves a call, and their loops."""
