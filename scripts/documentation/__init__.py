"""The pages of the documentation: their snippets are run, and their shown outputs and the API page are written."""
