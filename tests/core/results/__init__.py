"""Files and texts from outside: what is damaged or foreign is refused."""
