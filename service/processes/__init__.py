"""The processes of a service: front end, workers, their control and tuning."""
