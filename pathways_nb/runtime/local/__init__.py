"""The driver for JAX devices of this process: a dispatcher and watchers for each island.

No virtual time.
"""
