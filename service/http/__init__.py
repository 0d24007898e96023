"""HTTP: routes, bodies, problems."""
