"""transformers: detection, segmentation, depth, video and images beside text."""

from collections.abc import Mapping
from typing import Any

from .entry import Input, floats, integers, mask
from .tiny_transformers import entry
from .transformers_vision import BATCH, FIXED, FREE, SIZES, VIT

_TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
_RESNET = {
    **{"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 24, 32, 48]},
    **{"depths": [1, 1, 1, 1], "layer_type": "basic"},
    "out_features": ["stage2", "stage3", "stage4"],
}
_RT_BACKBONE = {**_RESNET, "model_type": "rt_detr_resnet", "downsample_in_first_stage": False}
_SWIN = {
    **{"model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 16},
    **{"depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4},
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_RT_DETR = {
    **{"encoder_hidden_dim": 32, "encoder_in_channels": [24, 32, 48], "encoder_ffn_dim": 48},
    **{"encoder_attention_heads": 2, "d_model": 32, "num_queries": 8, "decoder_layers": 2},
    **{"decoder_in_channels": [32, 32, 32], "decoder_ffn_dim": 48, "decoder_n_points": 2},
    **{"decoder_attention_heads": 2, "num_denoising": 0, "num_labels": 4},
    **{"anchor_image_size": None, "hidden_expansion": 0.5},
}
_CLIP = {
    "text_config": {**_TEXT, "eos_token_id": 98, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": VIT,
    "projection_dim": 32,
}
_SAM_VISION = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 48},
    **{"output_channels": 16, "image_size": 64, "patch_size": 8, "window_size": 4},
    **{"global_attn_indexes": [1], "num_pos_feats": 8},
}
_SAM = {
    "vision_config": _SAM_VISION,
    "prompt_encoder_config": {
        **{"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
    },
    "mask_decoder_config": {
        **{"hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2, "iou_head_hidden_dim": 16},
        **{"num_attention_heads": 2, "attention_downsample_rate": 2},
    },
}
_MASKS = {
    **{"backbone_config": _SWIN, "feature_size": 32, "mask_feature_size": 32},
    **{"hidden_dim": 32, "encoder_feedforward_dim": 24, "dim_feedforward": 24},
    **{"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2, "num_queries": 5},
    "num_labels": 4,
}
_WORDS = {
    "input_ids": integers("batch", "length", low=3, high=98),
    "attention_mask": mask("batch", "length"),
}
_WORD_SIZES = ({"batch": 2, "length": 10}, {"batch": 1, "length": 7})
_SQUARE = {"pixel_values": floats("batch", 3, 64, 64)}

FREE_SIZES: Mapping[str, Mapping[str, Any]] = {
    "GLPNForDepthEstimation": {
        **{"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
        **{"num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16},
    },
    "EfficientNetModel": {
        **{"width_coefficient": 0.5, "depth_coefficient": 0.2, "hidden_dim": 640},
        **{"image_size": 64},
    },
    "BitModel": {
        **{"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 4},
        "layer_type": "preactivation",
    },
    "SwiftFormerModel": {
        **{"embed_dims": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    },
    "HGNetV2ForImageClassification": {
        **{"stem_channels": [3, 8, 16], "stage_in_channels": [16, 16], "embedding_size": 16},
        **{"stage_mid_channels": [8, 8], "stage_out_channels": [16, 32], "depths": [1, 1]},
        **{"stage_num_blocks": [1, 1], "stage_downsample": [False, True]},
        **{"stage_light_block": [False, True], "stage_kernel_size": [3, 5]},
        **{"stage_numb_of_layers": [2, 2], "hidden_sizes": [16, 32]},
    },
    "MobileViTV2Model": {"width_multiplier": 0.25, "attn_unroll": 1},
    "UperNetForSemanticSegmentation": {
        "backbone_config": {**_RESNET, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
        **{"hidden_size": 16, "num_labels": 4, "use_auxiliary_head": False},
        "auxiliary_in_channels": 32,
    },
    "DepthAnythingForDepthEstimation": {
        "backbone_config": {
            **{"model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 4},
            **{"num_attention_heads": 2, "image_size": 56, "patch_size": 8},
            **{"out_indices": [1, 2, 3, 4], "reshape_hidden_states": False},
        },
        **{"reassemble_hidden_size": 32, "patch_size": 8, "fusion_hidden_size": 16},
        **{"neck_hidden_sizes": [16, 16, 32, 32], "head_hidden_size": 8},
    },
    "RTDetrForObjectDetection": {"backbone_config": _RT_BACKBONE, **_RT_DETR},
    "RTDetrV2ForObjectDetection": {"backbone_config": _RT_BACKBONE, **_RT_DETR},
    "DINOv3ViTModel": {k: v for k, v in VIT.items() if k != "image_size"},
    "DINOv3ConvNextModel": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "MaskFormerForInstanceSegmentation": {
        "backbone_config": _SWIN,
        "decoder_config": {
            **{"model_type": "detr", "d_model": 16, "decoder_layers": 1, "num_queries": 5},
            **{"decoder_attention_heads": 2, "decoder_ffn_dim": 24, "encoder_layers": 1},
            **{"encoder_attention_heads": 2, "encoder_ffn_dim": 24},
        },
        **{"fpn_feature_size": 32, "mask_feature_size": 32, "num_labels": 4},
    },
}
ONE_SIZE: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Input]]] = {
    "Mask2FormerForUniversalSegmentation": (_MASKS, _SQUARE),
    "LevitModel": (
        {
            **{"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [1, 2, 2]},
            **{"depths": [1, 1, 1], "key_dim": [8, 8, 8]},
            "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 2, 4, 2, 2], [""]],
        },
        _SQUARE,
    ),
    "HieraModel": (
        {
            **{"embed_dim": 16, "image_size": [64, 64], "depths": [1, 1, 1, 1]},
            **{"num_heads": [1, 1, 2, 2], "masked_unit_size": [8, 8]},
        },
        _SQUARE,
    ),
    "Data2VecVisionModel": ({**VIT, "use_relative_position_bias": True}, FIXED),
    "Dinov2WithRegistersModel": (
        {k: v for k, v in VIT.items() if k != "intermediate_size"},
        FIXED,
    ),
    "Aimv2VisionModel": (VIT, FIXED),
    "VitDetModel": (
        {
            **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"image_size": 64, "patch_size": 8, "window_block_indices": [0], "window_size": 3},
            "use_relative_position_embeddings": True,
        },
        _SQUARE,
    ),
    "SegGptForImageSegmentation": (
        {
            **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"image_size": [64, 32], "patch_size": 8, "mlp_dim": 48, "merge_index": 0},
            **{"intermediate_hidden_state_indices": [0, 1], "decoder_hidden_size": 8},
            "pretrain_image_size": 32,
        },
        {
            "pixel_values": floats("batch", 3, 32, 32),
            "prompt_pixel_values": floats("batch", 3, 32, 32),
            "prompt_masks": floats("batch", 3, 32, 32),
        },
    ),
    "VideoMAEModel": (
        {**VIT, "num_frames": 4, "tubelet_size": 2},
        {"pixel_values": floats("batch", 4, 3, 32, 32)},
    ),
    "TimesformerModel": (
        {**VIT, "num_frames": 2},
        {"pixel_values": floats("batch", 2, 3, 32, 32)},
    ),
    "VivitModel": (
        {**VIT, "num_frames": 4, "tubelet_size": [2, 8, 8]},
        {"pixel_values": floats("batch", 4, 3, 32, 32)},
    ),
    "MgpstrForSceneTextRecognition": (
        {
            **{"image_size": [16, 32], "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "max_token_length": 6, "num_bpe_labels": 40},
            **{"num_character_labels": 20, "num_wordpiece_labels": 40},
        },
        {"pixel_values": floats("batch", 3, 16, 32)},
    ),
    "SamModel": (
        _SAM,
        {
            "pixel_values": floats("batch", 3, 64, 64),
            "input_points": floats("batch", 1, 2, 2, low=0, high=64),
            "input_labels": integers("batch", 1, 2, high=2),
        },
    ),
}
BESIDE_TEXT: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Input]]] = {
    "OwlViTForObjectDetection": (_CLIP, FIXED),
    "Owlv2ForObjectDetection": (_CLIP, FIXED),
    "CLIPSegForImageSegmentation": (
        {**_CLIP, "extract_layers": [0, 1], "reduce_dim": 16, "decoder_num_attention_heads": 2},
        FIXED,
    ),
    "BlipForImageTextRetrieval": (
        {
            **_CLIP,
            "text_config": {**_TEXT, "encoder_hidden_size": 32},
            "image_text_hidden_size": 16,
        },
        FIXED,
    ),
    "ViltModel": ({**_TEXT, **VIT, "max_image_length": -1}, FIXED),
    "GitForCausalLM": (
        {**_TEXT, "vision_config": {**VIT, "model_type": "git_vision_model"}},
        FIXED,
    ),
    "LayoutLMv3Model": (
        {
            **{**_TEXT, "max_2d_position_embeddings": 128, "coordinate_size": 4, "shape_size": 8},
            **{"input_size": 32, "patch_size": 8, "pad_token_id": 1},
        },
        {**FIXED, "bbox": Input("int64", ("batch", "length", 4), "value", 7)},
    ),
    "VisualBertModel": (
        {**_TEXT, "visual_embedding_dim": 16},
        {
            "visual_embeds": floats("batch", 5, 16),
            "visual_attention_mask": Input("int64", ("batch", 5), "value", 1),
        },
    ),
    "LxmertModel": (
        {
            **{**_TEXT, "l_layers": 1, "x_layers": 1, "r_layers": 1},
            **{"visual_feat_dim": 16, "visual_pos_dim": 4},
        },
        {"visual_feats": floats("batch", 5, 16), "visual_pos": floats("batch", 5, 4)},
    ),
    "GroundingDinoForObjectDetection": (
        {
            "backbone_config": {**_SWIN, "out_features": ["stage2", "stage3", "stage4"]},
            "text_config": {"model_type": "bert", **_TEXT},
            **{"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 6},
            **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 2},
            **{"decoder_attention_heads": 2, "encoder_n_points": 2, "decoder_n_points": 2},
            **{"max_text_len": 12},
        },
        _SQUARE,
    ),
}

ENTRIES = (
    *(entry(model, options, FREE, SIZES) for model, options in FREE_SIZES.items()),
    *(entry(model, options, inputs, BATCH) for model, (options, inputs) in ONE_SIZE.items()),
    *(
        entry(model, options, {**_WORDS, **inputs}, _WORD_SIZES)
        for model, (options, inputs) in BESIDE_TEXT.items()
    ),
)
