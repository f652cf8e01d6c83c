"""A thread of the launcher looks at the pulses of all ranks while the job runs, and reports what is wrong."""
