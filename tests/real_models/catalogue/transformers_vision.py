"""transformers: images, and images beside text."""

from collections.abc import Mapping
from typing import Any

from .entry import Entry, Input, floats, integers, mask
from .tiny_transformers import entry

BATCH = ({"batch": 2}, {"batch": 1})
SIZES = ({"batch": 2, "height": 64, "width": 64}, {"batch": 1, "height": 96, "width": 64})
FIXED = {"pixel_values": floats("batch", 3, 32, 32)}
FREE = {"pixel_values": floats("batch", 3, "height", "width")}

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
_TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "eos_token_id": 98,
}
_STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [1, 2],
    "window_size": 4,
}
_DETR = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 5,
    "use_timm_backbone": True,
    "use_pretrained_backbone": False,
    "backbone": "resnet18",
}

# Images of one size: the batch alone may vary.
ONE_SIZE: Mapping[str, Mapping[str, Any]] = {
    "ViTForImageClassification": VIT,
    "DeiTModel": VIT,
    "BeitModel": {**VIT, "use_relative_position_bias": True},
    "ViTMSNModel": VIT,
    "SiglipVisionModel": VIT,
    "CLIPVisionModel": VIT,
    "DPTForDepthEstimation": {
        **VIT,
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [16, 16, 32, 32],
        "fusion_hidden_size": 16,
    },
    "YolosForObjectDetection": {**VIT, "image_size": [32, 32], "num_detection_tokens": 4},
}
ANY_SIZE: Mapping[str, Mapping[str, Any]] = {
    "ConvNextModel": _STAGES,
    "ConvNextV2ForImageClassification": _STAGES,
    "ResNetForImageClassification": {**_STAGES, "embedding_size": 16, "layer_type": "basic"},
    "RegNetModel": {**_STAGES, "embedding_size": 16, "groups_width": 8},
    "MobileNetV1Model": {"depth_multiplier": 0.25},
    "MobileNetV2ForSemanticSegmentation": {"depth_multiplier": 0.35},
    "SegformerForSemanticSegmentation": {
        "hidden_sizes": [16, 32, 48, 64],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 3, 4],
        "decoder_hidden_size": 32,
    },
    "PvtV2Model": {
        "hidden_sizes": [16, 32, 48, 64],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 3, 4],
    },
    "PoolFormerModel": _STAGES,
    "FocalNetModel": {"embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2]},
    "SwinModel": _SWIN,
    "Swinv2Model": _SWIN,
    "Swin2SRForImageSuperResolution": {
        "image_size": 16,
        "embed_dim": 16,
        "depths": [2],
        "num_heads": [2],
        "window_size": 4,
        "upscale": 2,
    },
    "MobileViTModel": {
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64],
    },
    "Dinov2Model": {**{k: v for k, v in VIT.items() if k != "intermediate_size"}},
}


def _detr(model: str, options: Mapping[str, Any]) -> Entry:
    inputs = {**FREE, "pixel_mask": mask("batch", "height", "width")}
    return entry(model, options, inputs, SIZES)


_CLIP = {"text_config": _TEXT, "vision_config": VIT, "projection_dim": 16}
_WORDS = {
    "input_ids": integers("texts", "length", low=3, high=98),
    "attention_mask": mask("texts", "length"),
}
_PAIRS = {**_WORDS, **FIXED}
_PAIR_SIZES = (
    {"batch": 2, "texts": 3, "length": 10},
    {"batch": 1, "texts": 2, "length": 7},
)
_LAYOUT = {
    "input_ids": integers("batch", "length", low=3, high=99),
    "bbox": Input("int64", ("batch", "length", 4), "value", 7),
    "attention_mask": mask("batch", "length"),
}
_LAYOUT_SIZES = ({"batch": 2, "length": 10}, {"batch": 1, "length": 7})

ENTRIES = (
    *(entry(model, options, FIXED, BATCH) for model, options in ONE_SIZE.items()),
    *(entry(model, options, FREE, SIZES) for model, options in ANY_SIZE.items()),
    # The patches that it hides are drawn at random unless it gets the draw.
    entry("ViTMAEModel", VIT, {**FIXED, "noise": floats("batch", 16)}, BATCH),
    _detr("DetrForObjectDetection", _DETR),
    _detr("ConditionalDetrForObjectDetection", _DETR),
    _detr("TableTransformerForObjectDetection", _DETR),
    _detr(
        "DeformableDetrForObjectDetection",
        {**_DETR, "encoder_n_points": 2, "decoder_n_points": 2},
    ),
    entry("CLIPModel", _CLIP, _PAIRS, _PAIR_SIZES),
    entry("SiglipModel", {k: v for k, v in _CLIP.items() if k[0] in "tv"}, _PAIRS, _PAIR_SIZES),
    entry("ChineseCLIPModel", _CLIP, _PAIRS, _PAIR_SIZES),
    entry("AltCLIPVisionModel", VIT, FIXED, BATCH),
    entry(
        "LayoutLMModel",
        {**_TEXT, "max_2d_position_embeddings": 128, "max_position_embeddings": 40},
        _LAYOUT,
        _LAYOUT_SIZES,
    ),
    entry(
        "LiltModel",
        {
            **_TEXT,
            "max_2d_position_embeddings": 128,
            "max_position_embeddings": 40,
            "pad_token_id": 1,
            "channel_shrink_ratio": 2,
        },
        _LAYOUT,
        _LAYOUT_SIZES,
    ),
)
