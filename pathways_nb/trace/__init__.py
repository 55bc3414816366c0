"""The one record of events, and what it adds up to: metrics, dependencies, the critical path, comparisons.

Nothing here runs or simulates; whoever runs writes the record.
"""
