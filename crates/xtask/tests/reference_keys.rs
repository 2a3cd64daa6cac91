//! `cargo xtask reference-keys` on a small invented package.

use std::fs;
use std::path::Path;
use xtask::reference_keys::read;

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

const CONFIGURATION_BASE: &str = r#"
class PreTrainedConfig:
    def __post_init__(self, **kwargs):
        self.id2label = kwargs.pop("num_labels", 2)
"#;

const CONFIGURATION: &str = r#"
from ...configuration_utils import PreTrainedConfig

class MistConfig(PreTrainedConfig):
    model_type = "mist"
    attribute_map = {"num_layers": "num_hidden_layers"}
    num_hidden_layers: int = 4
    hidden_size: int = interval(min=1)(default=64)
    attention_bias: bool = False
    drop: float = 0.1
    spread: float = 0.02
    aux_weight: float = 0.001
    windowed: bool = False
    window: int | None = 16
    unread: int = 7

    def __post_init__(self, **kwargs):
        self.window = self.window if self.windowed else None
        base = kwargs.pop("window_base", 10_000)
        super().__post_init__(**kwargs)

    def validate_architecture(self):
        assert self.unread > 0
"#;

const MODELING: &str = r#"
from torch import nn
from ...masking_utils import create_mask
from ...modeling_utils import PreTrainedModel

class MistAttention(nn.Module):
    def __init__(self, config):
        self.config = config
        self.projection = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)
        self.dropout = nn.Dropout(config.drop)
        self.aux_weight = config.aux_weight
        self.scale = getattr(config, "scale", 2.0)

    def forward(self, x):
        return create_mask(self.config) * self.scale * x

class MistForCausalLM(PreTrainedModel):
    def __init__(self, config):
        self.layers = [MistAttention(config) for _ in range(config.num_hidden_layers)]

    def _init_weights(self, module):
        module.weight.normal_(std=self.config.spread)

    def forward(self, x, labels=None):
        loss = None
        if labels is not None:
            loss = self.loss(x, labels) * self.aux_weight
        return x if not self.training else x * self.config.training_only

class MistForTokenClassification(PreTrainedModel):
    def __init__(self, config):
        self.head = nn.Linear(config.hidden_size, config.label_count)
"#;

const MASKS: &str = r#"
def create_mask(config):
    return mask(config.window, config.rope_parameters["factor"])
"#;

#[test]
fn keys_count_as_read_if_they_reach_the_logits() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "configuration_utils.py", CONFIGURATION_BASE);
    write(folder.path(), "masking_utils.py", MASKS);
    write(folder.path(), "models/mist/configuration_mist.py", CONFIGURATION);
    write(folder.path(), "models/mist/modeling_mist.py", MODELING);
    let types = ["mist=MistForCausalLM".to_owned()];
    let found = match read("python3", folder.path(), "1.2.3", &types) {
        Err(why) if why.contains("No such file") => return eprintln!("not tested: there is no python3"),
        found => found.unwrap(),
    };
    assert_eq!(found["transformers"], "1.2.3");
    let mist = &found["models"]["mist"];
    let keys: Vec<&String> = mist["keys"].as_object().unwrap().keys().collect();
    // Keys read through a called function, an alias, and a derived attribute of the configuration class; not those for initialization,
    // training, dropout, validation or classification.
    let expected = [
        "attention_bias",
        "hidden_size",
        "num_hidden_layers",
        "num_layers",
        "rope_parameters",
        "scale",
        "tie_word_embeddings",
        "window",
        "window_base",
        "windowed",
    ];
    assert_eq!(keys, expected);
    assert_eq!(mist["keys"]["hidden_size"], 64);
    assert_eq!(mist["keys"]["num_layers"], 4);
    assert_eq!(mist["keys"]["scale"], 2.0);
    assert_eq!(mist["nested"]["rope_parameters"], serde_json::json!(["factor"]));
    let missing = read("python3", folder.path(), "1.2.3", &["fog=FogForCausalLM".to_owned()]);
    assert!(missing.unwrap_err().contains("no configuration class has the model type fog"));
}
