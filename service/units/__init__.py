"""Units by HTTP: the fleet by urgency, one unit's history, its outcome."""
