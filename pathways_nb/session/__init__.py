"""The attached controller as a user meets it: calls, futures, tenants, batches of calls, elastic devices, status.

This package takes no scheduling decision (``controller`` does) and touches no device (``runtime`` does).
It is imported by ``attach`` and the packages that stand above it.
"""
