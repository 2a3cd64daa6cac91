"""The plots. Each is a module with `NAME`, `THEMES`, what it needs (`ROLES`, `suits`) and `tell`."""
