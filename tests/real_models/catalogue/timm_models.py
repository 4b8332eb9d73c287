"""timm: image classifiers, few blocks and narrow where their parameters allow that."""

from collections.abc import Mapping
from typing import Any

from .entry import Entry, Sizes, floats

CONVOLUTIONAL = ({"batch": 2, "height": 64, "width": 64}, {"batch": 1, "height": 96, "width": 64})

# Take images of any size. Name, then parameters that make the model smaller.
ANY_SIZE: Mapping[str, Mapping[str, Any]] = {
    "resnet18": {"layers": (1, 1, 1, 1)},
    "ecaresnet26t": {"layers": (1, 1, 1, 1)},
    "skresnet18": {"layers": (1, 1, 1, 1)},
    "res2net50_14w_8s": {"layers": (1, 1, 1, 1)},
    "resnest14d": {},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)},
    "convnextv2_atto": {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "edgenext_xx_small": {"depths": (1, 1, 2, 1), "dims": (16, 24, 32, 48)},
    "poolformer_s12": {},
    "caformer_s18": {},
    "regnetx_002": {},
    "regnety_002": {},
    "nfnet_l0": {},
    "ghostnet_050": {},
    "ghostnetv2_100": {},
    "hrnet_w18_small": {},
    "mobilenetv2_035": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_035": {},
    "mobilenetv4_hybrid_medium": {},
    "efficientnet_b0": {},
    "tf_efficientnetv2_b0": {},
    "mnasnet_small": {},
    "lcnet_035": {},
    "tinynet_e": {},
    "dla46_c": {},
    "dpn48b": {},
    "densenet121": {"block_config": (1, 1, 1, 1)},
    "xception41": {},
    "ese_vovnet19b_slim_dw": {},
    "repvgg_a0": {},
    "mobileone_s0": {},
    "fastvit_t8": {"layers": (1, 1, 1, 1)},
    "cspdarknet53": {},
    "selecsls42": {},
    "inception_next_atto": {"depths": (1, 1, 1, 1)},
    "repvit_m0_9": {},
    "starnet_s1": {},
    "mambaout_femto": {"depths": (1, 1, 1, 1)},
    "rexnet_100": {},
    "focalnet_tiny_srf": {},
    "davit_tiny": {
        "depths": (1, 1, 1, 1),
        "embed_dims": (16, 32, 48, 64),
        "num_heads": (1, 2, 3, 4),
    },
    "pvt_v2_b0": {"depths": (1, 1, 1, 1)},
    "twins_pcpvt_small": {"depths": (1, 1, 1, 1)},
    "twins_svt_small": {"depths": (1, 1, 2, 1)},
    "xcit_nano_12_p16_224": {"depth": 2, "embed_dim": 32, "cls_attn_layers": 1},
    "mvitv2_tiny": {},
    "efficientvit_b0": {},
    "swiftformer_xs": {},
    "shvit_s1": {},
}

# Take images of one size, whose batch alone may vary. Name, size, parameters.
ONE_SIZE: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "vit_tiny_patch16_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "vit_tiny_r_s16_p8_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "deit_tiny_distilled_patch16_224": (
        64,
        {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2},
    ),
    "beit_base_patch16_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "cait_xxs24_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "mixer_s16_224": (64, {"img_size": 64}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "convmixer_768_32": (64, {}),
    "swin_tiny_patch4_window7_224": (
        64,
        {"img_size": 64, "depths": (2, 2), "embed_dim": 16, "num_heads": (1, 2), "window_size": 4},
    ),
    "swinv2_tiny_window8_256": (
        64,
        {"img_size": 64, "depths": (2, 2), "embed_dim": 16, "num_heads": (1, 2), "window_size": 4},
    ),
    "swinv2_cr_tiny_224": (
        64,
        {"img_size": 64, "depths": (2, 2), "embed_dim": 16, "num_heads": (1, 2), "window_size": 4},
    ),
    "tiny_vit_5m_224": (64, {}),
    "gcvit_xxtiny": (64, {"img_size": 64}),
    "efficientvit_m0": (128, {"img_size": 128}),
    "levit_128s": (64, {"img_size": 64}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "maxvit_pico_rw_256": (64, {"img_size": 64}),
    "hiera_tiny_224": (64, {"img_size": (64, 64), "stages": (1, 1, 1, 1)}),
    "pit_ti_224": (64, {"img_size": 64, "depth": (1, 1, 1)}),
    "visformer_tiny": (64, {"img_size": 64}),
    "crossvit_tiny_240": (240, {}),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "volo_d1_224": (64, {"img_size": 64}),
    "nest_tiny": (64, {"img_size": 64}),
    "convit_tiny": (64, {"img_size": 64, "depth": 3}),
    "tnt_s_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "sequencer2d_s": (64, {"layers": (1, 1, 1, 1)}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (64, {"img_size": 64}),
    "halonet26t": (256, {}),
    "botnet26t_256": (64, {"img_size": 64}),
    "lambda_resnet26t": (64, {}),
    "bat_resnext26ts": (256, {}),
}


def _entry(name: str, options: Mapping[str, Any], size: int | None) -> Entry:
    def build() -> Any:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **options)

    image = (size, size) if size else ("height", "width")
    sizes: tuple[Sizes, ...] = ({"batch": 2}, {"batch": 1}) if size else CONVOLUTIONAL
    inputs = {"images": floats("batch", 3, *image)}
    return Entry(name, "timm", ("torchscript", "dynamo"), build, inputs, sizes)


ENTRIES = (
    *(_entry(name, options, None) for name, options in ANY_SIZE.items()),
    *(_entry(name, options, size) for name, (size, options) in ONE_SIZE.items()),
)
