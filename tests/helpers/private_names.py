"""The private names of Keras and TensorFlow that the package relies on."""

from __future__ import annotations

_OF_BOTH: dict[str, tuple[str, ...]] = {
    "Probabilities": ("_keras_logits",),
    "Functional": ("_inbound_nodes", "_nodes_by_depth", "_compile_config"),
    "Symbolic": ("_keras_history",),
    "Loss": ("_fn_kwargs",),
    "Metric": ("_fn", "_fn_kwargs"),
    "Tensor": ("_keras_mask",),
    "evaluate": ("_use_cached_eval_dataset",),
}
PRIVATE_NAMES: dict[int, dict[str, tuple[str, ...]]] = {
    2: {
        **_OF_BOTH,
        "Model": ("_check_sample_weight_warning", "_steps_per_execution", "_validate_and_get_metrics_result"),
        "Layer": ("_callable_losses", "_clear_losses", "_eager_losses", "_flatten_layers", "_name"),
        "Dropout": ("_random_generator",),
        "RandomGenerator": ("_built", "_generator", "_maybe_init", "_rng_type"),
        "Optimizer": (
            "_compute_current_learning_rate",
            "_index_dict",
            "_model_variables_moving_average",
            "_use_weight_decay",
            "_var_key",
        ),
        "LossScaleOptimizer": ("_loss_scale",),
    },
    3: {
        **_OF_BOTH,
        "EarlyStopping": ("_set_monitor_op",),
        "Metric": ("_fn", "_fn_kwargs", "_direction"),
        "Model": ("_get_metrics_result_or_logs", "_maybe_symbolic_build"),
        "Layer": (
            "_clear_losses",
            "_flatten_layers",
            "_tracker",
            "_allow_non_tensor_positional_args",
            "_convert_input_args",
        ),
        "Optimizer": (
            "_all_reduce_sum_gradients",
            "_get_variable_index",
            "_model_variables_moving_average",
            "_use_weight_decay",
        ),
        "LossScaleOptimizer": ("_stateful_handle_finite_grads", "_stateful_handle_non_finite_grads"),
    },
}
"""The private names of Keras that `keras.py`, `calls.py`, `layers.py` and `optimizers.py` in `multihead/_ground/` override, set or read, by owner.

A test fails if a release drops one.
"""

PRIVATE_NAMES_OF_TENSORFLOW = (
    "_get_control_flow_context",
    "_in_multi_worker_mode",
    "_inputs",
    "_noinline",
    "_read_only_resource_inputs",
    "_value_specs",
    "_watched_variables",
)
"""The same of TensorFlow; they may be used in other files, too."""
