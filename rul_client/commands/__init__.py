"""Commands that use a service: predict, outcomes, bench, top."""
