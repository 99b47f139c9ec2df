"""Scripts that measure. A package of its own name: Opacus installs another one."""
