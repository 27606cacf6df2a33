"""The parts of the mutation study: edits of a source file, which tests can notice one, and running those tests."""
