"""torchrun's options, by torchrun's own names, so that `ddpprof trace` can pass them on without importing torch.

A test compares the table with the parser of the installed torch.
"""

from __future__ import annotations

OPTIONS: tuple[tuple[tuple[str, ...], bool], ...] = (
    (("--nnodes",), True),
    (("--nproc-per-node", "--nproc_per_node"), True),
    (("--rdzv-backend", "--rdzv_backend"), True),
    (("--rdzv-endpoint", "--rdzv_endpoint"), True),
    (("--rdzv-id", "--rdzv_id"), True),
    (("--rdzv-conf", "--rdzv_conf"), True),
    (("--standalone",), False),
    (("--max-restarts", "--max_restarts"), True),
    (("--monitor-interval", "--monitor_interval"), True),
    (("--start-method", "--start_method"), True),
    (("--event-log-handler", "--event_log_handler"), True),
    (("--role",), True),
    (("--no-python", "--no_python"), False),
    (("--run-path", "--run_path"), False),
    (("--log-dir", "--log_dir"), True),
    (("-r", "--redirects"), True),
    (("-t", "--tee"), True),
    (("--local-ranks-filter", "--local_ranks_filter"), True),
    (("--duplicate-stdout-filters", "--duplicate_stdout_filters"), True),
    (("--duplicate-stderr-filters", "--duplicate_stderr_filters"), True),
    (("--node-rank", "--node_rank"), True),
    (("--master-addr", "--master_addr"), True),
    (("--master-port", "--master_port"), True),
    (("--local-addr", "--local_addr"), True),
    (("--logs-specs", "--logs_specs"), True),
    (("--numa-binding", "--numa_binding"), True),
    (("--signals-to-handle", "--signals_to_handle"), True),
    (("--shutdown-timeout", "--shutdown_timeout"), True),
    (("--virtual-local-rank", "--virtual_local_rank"), False),
    (("--log-line-prefix-template", "--log_line_prefix_template"), True),
    (("--print-completion", "--print_completion"), True),
)
"""names of each option, and whether it takes a value; ``-m/--module`` is also an option of `ddpprof trace`"""
