"""Whether one system is better than another: tests over sentences, and tests over seeds."""
