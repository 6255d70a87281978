"""Generates a table of `docs/developing/architecture.md`: what each public name of `keras.Model` is in a trainer.

`python docs/keras_table.py` writes it; a test checks each row, and that no name of the installed Keras lacks one.
"""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parent / "developing" / "architecture.md"
BEGIN, END = "<!-- keras.Model: begin -->\n", "<!-- keras.Model: end -->\n"

ROWS = {
    "works as in Keras": """
        activity_regularizer add_update add_variable add_weight autotune_steps_per_execution compute_dtype
        compute_output_shape compute_output_signature compute_output_spec count_params distribute_reduction_method
        distribute_strategy dtype dtype_policy dynamic evaluate_generator finalize_state fit_generator get_layer
        get_state_tree get_weight_paths get_weights inbound_nodes input_dtype input_spec jit_compile layers losses
        metrics_variables name name_scope non_trainable_variables non_trainable_weights
        outbound_nodes path predict_generator predict_step quantization_mode rematerialized_call reset_metrics reset_states
        run_eagerly save_spec set_state_tree set_weights state_updates stateful steps_per_execution submodules
        supports_masking symbolic_call trainable trainable_variables trainable_weights updates variable_dtype variables
        with_name_scope""",
    "works as in Keras, for heads": """
        build_from_config compile compile_from_config evaluate export fit from_config get_build_config get_compile_config
        get_config load_own_variables load_weights make_predict_function make_test_function make_train_function metrics
        metrics_names predict predict_on_batch save save_own_variables save_weights summary test_on_batch test_step to_json
        train_on_batch train_step weights""",
    "an error to override, since `fit` does not call it": """
        build call compute_loss compute_mask compute_metrics get_metrics_result""",
    "an error to call, which says what to do": "add_loss add_metric",
    "does not apply: a trainer is no functional model": """
        get_input_at get_input_mask_at get_input_shape_at get_output_at get_output_mask_at get_output_shape_at input
        input_mask input_shape output output_mask output_shape to_yaml""",
    "does not apply: losses and metrics are the heads'": "compiled_loss compiled_metrics loss",
    "does not apply: for other backends than TensorFlow, or for models of layers that can be quantized": """
        get_quantization_layer_structure quantize quantized_build quantized_call stateless_call stateless_compute_loss""",
}
"""The names by what they are; some exist on one stack only."""


def kinds() -> dict[str, str]:
    """What each name is, in alphabetical order."""
    return dict(sorted((name, kind) for kind, names in ROWS.items() for name in names.split()))


def page() -> str:
    """The page, with the table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    rows = [f"| {kind} | {', '.join(f'`{name}`' for name in sorted(names.split()))} |" for kind, names in ROWS.items()]
    table = "\n".join(["", "| in a trainer | names |", "| --- | --- |", *rows, "\n"])
    return before + BEGIN + table + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
