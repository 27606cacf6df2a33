"""One run of a recipe: what it does, prints, records and writes, and reading it back."""
