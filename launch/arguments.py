"""What a recipe may say under `grpo`: one row for every argument of TRL 1.16.0's GRPOConfig.

launch/grpo_arguments.json lists the names and types of the installed TRL. Here each of them is in exactly one table: a
number with its range, a word with its choices, a mapping with its keys, a switch, or left out with the reason. A test
compares the two, so that an upgrade which brings an argument brings a decision too. What goes beyond one argument is in
launch/check_sections.py.
"""

# Set by the recipe's other sections or by the launcher; stating them in `grpo` would be a second way to say the same.
MANAGED = {
    "output_dir": "the launcher makes the run's folder",
    "run_name": "the launcher names the run after the recipe",
    "logging_steps": "the run record has a line for every step",
    "logging_strategy": "the run record has a line for every step",
    "logging_first_step": "the run record has a line for every step",
    "include_num_input_tokens_seen": "the run record counts tokens",
    "skip_memory_metrics": "the run record measures",
    "log_level": "the launcher collects the logs",
    "log_level_replica": "the launcher collects the logs",
    "log_on_each_node": "the launcher collects the logs",
    "disable_tqdm": "the launcher draws the progress",
    "report_to": "use the section `tracking`",
    "project": "use tracking.project",
    "use_vllm": "use recipe.arm",
    "vllm_mode": "use recipe.arm",
    "use_transformers_continuous_batching": "use recipe.arm",
    "use_transformers_paged": "use recipe.arm: continuous_batching",
    "model_init_kwargs": "use the section `model`",
    "trust_remote_code": "use model.trust_remote_code",
    "reward_weights": "use the section `rewards`: name -> weight",
    "deepspeed": "use the section `accelerate`",
    "fsdp": "use the section `accelerate`",
    "fsdp_config": "use the section `accelerate`",
    "parallelism_config": "use the section `accelerate`",
    "accelerator_config": "use the section `accelerate`",
    "use_cpu": "use cluster.gpu: cpu",
    "ddp_backend": "follows from cluster.gpu",
    "local_rank": "the launcher starts the ranks",
    "vllm_server_base_url": "the launcher starts the server and knows its address",
    "vllm_server_host": "the launcher starts the server and knows its address",
    "vllm_server_port": "the launcher starts the server and knows its address",
    "vllm_group_port": "the launcher starts the server and knows its address",
    "resume_from_checkpoint": "the launcher decides whether to resume",
    "ignore_data_skip": "the launcher decides whether to resume",
    "restore_callback_states_from_checkpoint": "the launcher decides whether to resume",
    "do_train": "every recipe trains",
    "do_predict": "every recipe trains",
    "do_eval": "use data.eval_split",
    "eval_on_start": "use data.eval_split: the held-out problems are graded before and after",
    "remove_unused_columns": "the rewards need the gold column",
}

_SUPERVISED = "belongs to supervised training; GRPO makes its own batches and losses"
_HUB = "a run writes its own folder and nothing else; upload what you want from there"
_LOADER = "the prompts are a few megabytes in memory; a loader in other processes has nothing to do"
_BEST = "the record has every step; choose the checkpoint afterwards"
_COMPILE = "not tried with TRL's fused head and DeepSpeed"

# Valid for TRL and not offered here: each would need something that these recipes do not have, or breaks later.
LEFT_OUT = {
    "auto_find_batch_size": "a smaller batch would break the prompt groups (TRL refuses it too); state the batch",
    "vllm_importance_sampling_cap": "use vllm_importance_sampling_clip_max",
    "vllm_structured_outputs_regex": "the rewards grade what the model writes freely",
    "fp16": "bf16 is what the paper used; fp16 needs a loss scaler that accelerate_configs/ does not set up",
    "fp16_full_eval": "would cast the weights under training",
    "bf16_full_eval": "would cast the weights under training",
    "tf32": "bf16 decides the precision of the matrix products",
    "torch_compile": _COMPILE, "torch_compile_backend": _COMPILE, "torch_compile_mode": _COMPILE,
    "liger_kernel_config": "deprecated by TRL 1.16.0, whose fused head replaces it",
    "cast_lm_head_to_fp32": "the engine would get a head in another precision than its own",
    "cache_implementation": "generate() chooses its cache",
    "use_cache": "TRL sets it",
    "chat_template_kwargs": "prompts are counted and sent with the template's own defaults",
    "router_aux_loss_coef": "the recipes' models are dense",
    "max_tool_calling_iterations": "no recipe has tools",
    "full_determinism": "forbids kernels that the attention needs; three seeds say more",
    "optim_args": "none of the optimizers offered takes any",
    "optim_target_modules": "none of the optimizers offered takes any",
    "neftune_noise_alpha": _SUPERVISED, "label_smoothing_factor": _SUPERVISED, "label_names": _SUPERVISED,
    "train_sampling_strategy": _SUPERVISED, "length_column_name": _SUPERVISED, "prediction_loss_only": _SUPERVISED,
    "include_for_metrics": _SUPERVISED, "batch_eval_metrics": _SUPERVISED, "eval_do_concat_batches": _SUPERVISED,
    "eval_use_gather_object": _SUPERVISED, "eval_accumulation_steps": _SUPERVISED,
    "push_to_hub": _HUB, "hub_token": _HUB, "hub_private_repo": _HUB, "hub_model_id": _HUB, "hub_strategy": _HUB,
    "hub_always_push": _HUB, "hub_revision": _HUB, "log_completions_hub_repo": _HUB,
    "trackio_space_id": _HUB, "trackio_bucket_id": _HUB, "trackio_static_space_id": _HUB,
    "dataloader_num_workers": _LOADER, "dataloader_pin_memory": _LOADER, "dataloader_persistent_workers": _LOADER,
    "dataloader_prefetch_factor": _LOADER, "dataloader_multiprocessing_context": _LOADER, "dataloader_in_order": _LOADER,
    "dataloader_drop_last": "TRL's sampler leaves an incomplete generation batch out by itself",
    "data_seed": "TRL's sampler takes grpo.seed",
    "load_best_model_at_end": _BEST, "metric_for_best_model": _BEST, "greater_is_better": _BEST,
    "save_on_each_node": "would write the checkpoint once a node into one folder",
    "save_only_model": "such a checkpoint cannot be resumed from",
    "enable_jit_checkpoint": "the launcher stops runs, and the record says where",
    "debug": "the run record and the ranks' logs are for that",
    "ddp_bucket_cap_mb": "never needed at these sizes", "ddp_broadcast_buffers": "never needed at these sizes",
    "ddp_static_graph": "TRL's step has more than one graph",
    "log_multimodal": "text only",
}  # fmt: skip

# Names that older TRL versions had, or that belong elsewhere, and where their meaning lives now.
RENAMED = {
    "max_prompt_length": "data.max_prompt_tokens",
    "vllm_device": "recipe.arm and cluster",
    "vllm_dtype": "model.dtype",
    "vllm_max_model_len": "grpo.vllm_max_model_length",
    "num_processes": "cluster.nodes and cluster.gpus_per_node",
    "gpu_memory_utilization": "grpo.vllm_gpu_memory_utilization",
    "tensor_parallel_size": "grpo.vllm_tensor_parallel_size",
    "vllm_sleep": "grpo.vllm_enable_sleep_mode",
    "warmup_ratio": "grpo.warmup_steps: a number below 1 is a ratio",
}

# TRL's defaults for these have moved between versions, or decide the algorithm: a recipe states every one.
STATED = (
    "seed", "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "num_iterations",
    "max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "loss_type", "beta",
    "epsilon", "scale_rewards", "mask_truncated_completions", "learning_rate", "lr_scheduler_type", "warmup_steps",
    "weight_decay", "max_grad_norm", "optim", "bf16", "gradient_checkpointing", "shuffle_dataset",
)  # fmt: skip
STATED_WITH_VLLM = (
    "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
    "vllm_max_model_length",
)  # fmt: skip
STATED_COLOCATED = ("vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode")

_COUNT = 2**31 - 1  # what the samplers and the engines keep in 32 bits

# name: (least, least allowed?, most, most allowed?)
NUMBERS = {
    "per_device_train_batch_size": (1, True, 4096, True),
    "per_device_eval_batch_size": (1, True, 4096, True),
    "gradient_accumulation_steps": (1, True, 4096, True),
    "steps_per_generation": (1, True, 4096, True),
    "generation_batch_size": (2, True, 2**20, True),
    "num_generations": (2, True, 4096, True),
    "num_generations_eval": (1, True, 4096, True),
    "num_iterations": (1, True, 64, True),
    "max_completion_length": (1, True, 2**20, True),
    "max_steps": (1, True, 10**7, True),
    "num_train_epochs": (0, False, 10**5, True),
    "temperature": (0.01, True, 2, True),  # vLLM's limits; below 0.01 it samples greedily, and groups are all alike
    "top_p": (0, False, 1, True),
    "top_k": (0, True, _COUNT, True),
    "min_p": (0, True, 1, True),
    "repetition_penalty": (0, False, 2, True),
    "beta": (0, True, 10, True),
    "epsilon": (0, False, 1, False),
    "epsilon_high": (0, False, 100, True),
    "delta": (1, False, 1000, True),
    "learning_rate": (0, False, 0.1, True),
    "warmup_steps": (0, True, 10**7, True),
    "weight_decay": (0, True, 1, True),
    "max_grad_norm": (0, True, 10**4, True),
    "adam_beta1": (0, True, 1, False),
    "adam_beta2": (0, True, 1, False),
    "adam_epsilon": (0, False, 1e-2, True),
    "top_entropy_quantile": (0, False, 1, True),
    "entropy_coef": (0, True, 1, True),
    "entropy_coef_min": (0, True, 1, True),
    "entropy_coef_max": (0, True, 1, True),
    "entropy_coef_delta": (0, True, 1, True),
    "entropy_target": (0, True, 100, True),
    "sapo_temperature_neg": (0, False, 100, True),
    "sapo_temperature_pos": (0, False, 100, True),
    "vespo_k_pos": (0, False, 100, True),
    "vespo_lambda_pos": (0, False, 100, True),
    "vespo_k_neg": (0, False, 100, True),
    "vespo_lambda_neg": (0, False, 100, True),
    "ref_model_mixup_alpha": (0, False, 1, True),
    "ref_model_sync_steps": (1, True, _COUNT, True),
    "off_policy_mask_threshold": (0, False, 1000, True),
    "seed": (0, True, 2**31 - 1, True),
    "vllm_max_model_length": (2, True, 2**20, True),
    "vllm_tensor_parallel_size": (1, True, 1024, True),
    "vllm_gpu_memory_utilization": (0, False, 1, False),
    "vllm_importance_sampling_clip_max": (0, False, 10**6, True),
    "vllm_importance_sampling_clip_min": (0, True, 10**6, True),
    "vllm_server_timeout": (1, True, 86400, True),
    "pad_to_multiple_of": (1, True, 4096, True),
    "torch_empty_cache_steps": (1, True, _COUNT, True),
    "ddp_timeout": (60, True, 10**6, True),
    "save_steps": (0, False, _COUNT, True),
    "save_total_limit": (1, True, 10**6, True),
    "eval_steps": (0, False, _COUNT, True),
    "eval_delay": (0, True, _COUNT, True),
    "num_completions_to_print": (1, True, 4096, True),
}

# A ratio below 1, a count from 1 on: transformers would cut the fraction off in silence or refuse it later.
COUNT_OR_RATIO = ("warmup_steps", "save_steps", "eval_steps")

WORDS = {
    # those of transformers' 12 that need no further numbers, and the one whose number is worth having (MAPPINGS)
    "lr_scheduler_type": ("linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr"),
    # those that PyTorch and transformers bring themselves; the other names need packages that no environment here has
    "optim": ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd"),
    "loss_type": ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"),
    "scale_rewards": ("group", "batch", "none"),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_model_impl": ("vllm", "auto"),
    "eval_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch"),
}

SWITCHES = (
    "average_tokens_across_devices", "bf16", "gradient_checkpointing", "logging_nan_inf_filter", "disable_dropout",
    "ds3_gather_for_generation", "shuffle_dataset", "vllm_enable_sleep_mode", "mask_truncated_completions",
    "sync_ref_model", "use_adaptive_entropy", "vllm_importance_sampling_correction", "use_bias_correction_kl",
    "log_completions", "log_unique_prompts", "ddp_find_unused_parameters", "use_liger_kernel",
)  # fmt: skip

# key: (type, least, most); a list's limits are those of its items
_VLLM_SAMPLING = {
    "stop": (list[str], 1, 1000), "stop_token_ids": (list[int], 0, _COUNT), "ignore_eos": (bool, None, None),
    "min_tokens": (int, 0, _COUNT), "detokenize": (bool, None, None), "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
}  # fmt: skip
_GENERATE = {"min_new_tokens": (int, 0, _COUNT)}
MAPPINGS = {
    "lr_scheduler_kwargs": {"min_lr_rate": (float, 0, 1)},
    "gradient_checkpointing_kwargs": {"use_reentrant": (bool, None, None)},
    "transformers_continuous_batching_config": {
        "block_size": (int, 1, 4096), "num_blocks": (int, 1, _COUNT), "max_batch_tokens": (int, 1, _COUNT),
        "max_memory_percent": (float, 0.01, 0.95), "max_requests_per_batch": (int, 1, 10**6),
        "allow_block_sharing": (bool, None, None), "use_cuda_graph": (bool, None, None),
    },
    "generation_kwargs": {  # by arm
        "colocate": _VLLM_SAMPLING, "server": _VLLM_SAMPLING, "generate": _GENERATE, "continuous_batching": {},
    },
}  # fmt: skip

# Where null is a value: everywhere else it would crash late, or mean TRL's default of the day.
NULL_MEANS = {
    "min_p": "off", "epsilon_high": "as epsilon", "delta": "no second clip", "generation_batch_size": "derived",
    "steps_per_generation": "derived", "num_generations_eval": "as num_generations", "generation_kwargs": "none",
    "gradient_checkpointing_kwargs": "none", "lr_scheduler_kwargs": "none", "off_policy_mask_threshold": "off",
    "vllm_importance_sampling_clip_max": "unbounded", "vllm_importance_sampling_clip_min": "unbounded",
    "pad_to_multiple_of": "off", "save_total_limit": "all kept", "torch_empty_cache_steps": "never",
    "ddp_find_unused_parameters": "transformers decides", "transformers_continuous_batching_config": "TRL's",
    "num_completions_to_print": "all",
}  # fmt: skip

# Two ways to say one thing: `--set` of the one takes the other out, and a recipe may state only one.
ALTERNATIVES = (("max_steps", "num_train_epochs"), ("generation_batch_size", "steps_per_generation"))
