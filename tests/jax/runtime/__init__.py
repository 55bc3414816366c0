"""The controller and its driver on real devices: order, memory, tenants, interrupts, lost devices."""
