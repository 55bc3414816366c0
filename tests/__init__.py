"""The tests: fast ones first, then those that need a browser (marked ``browser``) or patience (``slow``)."""
