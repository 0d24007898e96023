"""Commands that ask a service: predict, outcomes, bench, top."""
