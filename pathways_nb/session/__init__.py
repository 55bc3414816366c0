"""A controller as a person uses it: calls, futures, tenants, loose calls in batches, devices that come and go.

No decision of the core and no device of a kind: drivers have those.
"""
