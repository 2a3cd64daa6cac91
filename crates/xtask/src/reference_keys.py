"""Which configuration keys the modeling code of Hugging Face transformers reads, by model type.

    reference_keys.py PACKAGE_FOLDER RELEASE TYPE=CLASS...

PACKAGE_FOLDER is the folder of an installed transformers package; its sources are parsed and not run. For each model type, this
starts at a class (`LlamaForCausalLM`), follows the classes and functions of the forward pass that it names, and collects what they
read of the configuration. Prints JSON:

    {"transformers": RELEASE, "models": {TYPE: {"keys": {KEY: DEFAULT}, "nested": {OBJECT: [KEY]}}}}

DEFAULT is the value that the configuration class has without the key, null where it has none. Not counted is what changes no logits:
weight initialization, losses, dropout, and branches of training.
"""

import ast
import json
import pathlib
import sys

# Names of variables and attributes that hold the configuration of a text model.
CONFIGS = {"config", "text_config", "effective_config", "decoder_config", "layer_config", "cfg"}

# Methods that are no part of the forward pass.
SKIPPED = {
    "_init_weights", "_initialize_weights", "init_weights", "extra_repr", "__repr__", "prepare_inputs_for_generation",
    "_prepare_cache_for_generation", "_update_model_kwargs_for_generation", "resize_token_embeddings", "load_balancing_loss_func",
    "rope_config_validation", "validate_rope", "create_masks_for_generate",
}

# Modules that take part in a forward pass, beside those of models.
FOLLOWED = ("modeling_rope_utils", "masking_utils", "cache_utils", "modeling_layers", "activations")

# What every model reads in its base class, which is not followed: it loads and saves.
BASE = {"tie_word_embeddings"}

# Conditions on these are about losses and training.
TRAINING = {"training", "labels", "output_router_logits"}

ROPE_OBJECTS = {"rope_parameters", "rope_scaling"}


class Module:
    """A source file: its classes, functions and assignments by name, and where imported names come from."""

    def __init__(self, package, name):
        self.package, self.name = package, name
        path = package.folder / (name.replace(".", "/") + ".py")
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.defined, self.imported = {}, {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                parts = name.split(".")[: -node.level]
                source = ".".join(parts + (node.module.split(".") if node.module else []))
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (source, alias.name)
        for node in self.tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.defined[node.targets[0].id] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.defined[node.target.id] = node


class Package:
    """The package's modules, parsed as they are asked for."""

    def __init__(self, folder):
        self.folder, self.modules = pathlib.Path(folder), {}

    def module(self, name):
        if name not in self.modules:
            exists = (self.folder / (name.replace(".", "/") + ".py")).is_file()
            self.modules[name] = Module(self, name) if exists else None
        return self.modules[name]

    def find(self, module, name):
        """The module and the node that a name means in a module; none where that is outside the package."""
        for _ in range(8):
            if module is None:
                return None
            if name in module.defined:
                return module, module.defined[name]
            if name not in module.imported:
                return None
            source, name = module.imported[name]
            module = self.module(source)
        return None


def last_name(node):
    """The name that an expression ends in: `b` of `a.b`, `a` of `a`, and of `a[0]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def constant(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def names_in(node):
    return {last_name(inner) for inner in ast.walk(node) if isinstance(inner, (ast.Name, ast.Attribute))}


class Reader(ast.NodeVisitor):
    """What code reads of a configuration."""

    def __init__(self, package, follows):
        self.package, self.follows = package, follows
        self.keys, self.nested = set(), {}
        # What `getattr` takes a key to be that the configuration does not have.
        self.defaults = {}
        # Attributes of modules that a key was stored in, by name, and the attributes that anything loads.
        self.stored, self.loaded = {}, set()
        self.seen, self.waiting, self.module = set(), [], None

    def run(self, module, node):
        self.waiting.append((module, node))
        while self.waiting:
            module, node = self.waiting.pop()
            if (module.name, id(node)) in self.seen:
                continue
            self.seen.add((module.name, id(node)))
            self.module = module
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    self.visit(base)
                for statement in node.body:
                    self.visit(statement)
            else:
                self.generic_visit(node)
        for attribute, keys in self.stored.items():
            if attribute in self.loaded:
                self.keys |= keys

    def read(self, node):
        """The key of the configuration that an expression is, if it is one."""
        if isinstance(node, ast.Attribute) and last_name(node.value) in CONFIGS:
            return node.attr
        is_getattr = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if is_getattr and last_name(node.args[0]) in CONFIGS:
            return constant(node.args[1])
        return None

    def visit_FunctionDef(self, node):
        if node.name not in SKIPPED and not node.name.startswith("_validate"):
            for decorator in node.decorator_list:
                self.visit(decorator)
            for default in node.args.defaults + [default for default in node.args.kw_defaults if default]:
                self.visit(default)
            for statement in node.body:
                self.visit(statement)

    def visit_AnnAssign(self, node):
        if node.value:
            self.visit(node.value)

    def visit_Assign(self, node):
        key, target = self.read(node.value), node.targets[0]
        is_stored = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
        if key and is_stored and len(node.targets) == 1:
            if isinstance(node.value, ast.Call) and len(node.value.args) == 3:
                self.defaults.setdefault(key, default(node.value.args[2]))
            self.stored.setdefault(target.attr, set()).add(key)
            for argument in getattr(node.value, "args", [])[2:]:
                self.visit(argument)
            return
        self.generic_visit(node)

    def visit_If(self, node):
        if names_in(node.test) & TRAINING:
            for statement in node.orelse:
                self.visit(statement)
            return
        self.generic_visit(node)

    def visit_IfExp(self, node):
        if not names_in(node.test) & TRAINING:
            self.generic_visit(node)

    def visit_Call(self, node):
        name = last_name(node.func)
        if "dropout" in name.lower():
            return
        key = self.read(node)
        if key:
            self.keys.add(key)
            if len(node.args) == 3:
                self.defaults.setdefault(key, default(node.args[2]))
        if isinstance(node.func, ast.Attribute) and name in ("get", "pop", "setdefault") and node.args:
            self.inner(node.func.value, node.args[0])
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if "dropout" not in (keyword.arg or ""):
                self.visit(keyword.value)

    def visit_Subscript(self, node):
        self.inner(node.value, node.slice)
        self.generic_visit(node)

    def inner(self, of, index):
        """Notes a key of an object of the configuration."""
        name, key = last_name(of), constant(index)
        if key and any(part in name for part in ("rope_parameters", "rope_params", "rope_scaling")):
            self.nested.setdefault("rope_parameters", set()).add(key)

    def visit_Attribute(self, node):
        key = self.read(node)
        if key:
            self.keys.add(key)
        elif isinstance(node.ctx, ast.Load):
            self.loaded.add(node.attr)
        self.generic_visit(node)

    def visit_Name(self, node):
        if not self.follows:
            return
        found = self.package.find(self.module, node.id)
        if found and is_followed(found[0].name) and node.id not in SKIPPED:
            self.waiting.append(found)


def is_followed(module):
    return module in FOLLOWED or module.startswith("models.") and ".modeling_" in module or module.startswith("integrations.") and "attention" in module


def fields(package, module, node):
    """The defaults, aliases and methods of a configuration class and those that it is derived from."""
    defaults, aliases, methods = {}, {}, []
    for base in node.bases:
        found = package.find(module, last_name(base))
        if found and isinstance(found[1], ast.ClassDef):
            inherited = fields(package, *found)
            defaults.update(inherited[0])
            aliases.update(inherited[1])
            methods += inherited[2]
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            defaults[statement.target.id] = default(statement.value)
        elif isinstance(statement, ast.Assign) and last_name(statement.targets[0]) == "attribute_map":
            aliases.update(ast.literal_eval(statement.value))
        elif isinstance(statement, ast.FunctionDef) and not statement.name.startswith("validate"):
            # Base classes take what belongs to no model: labels, settings of generation, data types.
            if module.name.startswith("models."):
                methods.append(statement)
    return defaults, aliases, methods


def default(node):
    """The default that a field is declared with."""
    if isinstance(node, ast.Call):
        node = next((keyword.value for keyword in node.keywords if keyword.arg == "default"), None)
    try:
        return ast.literal_eval(node) if node else None
    except ValueError:
        return None


def computed(methods, keys):
    """The keys that others are computed of, in a configuration class: those of keys that are read are read too."""
    flows = []
    for method in methods:
        is_property = any(last_name(decorator) == "property" for decorator in method.decorator_list)
        if is_property:
            flows.append(({method.name}, own(method)))
            continue
        for statement in ast.walk(method):
            if isinstance(statement, ast.Assign):
                targets = {last_name(target) for target in statement.targets if isinstance(target, ast.Attribute)}
                flows.append((targets, own(statement.value)))
            elif isinstance(statement, ast.If):
                assigned = {
                    last_name(target)
                    for inner in ast.walk(statement) if isinstance(inner, ast.Assign)
                    for target in inner.targets if isinstance(target, ast.Attribute)
                }
                flows.append((assigned, own(statement.test)))
    while True:
        more = set().union(*(sources for targets, sources in flows if targets & keys)) - keys
        if not more:
            return keys
        keys = keys | more


def taken(methods):
    """The further arguments that a configuration class takes, which are keys of the file that are no fields."""
    fields_and_taken = set().union(*(own(method) for method in methods)) if methods else set()
    loaded = {inner.attr for method in methods for inner in ast.walk(method) if isinstance(inner, ast.Attribute)}
    return fields_and_taken - loaded


def own(node):
    """The fields and further arguments that an expression reads."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            found.add(inner.attr)
        is_taken = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and last_name(inner.func.value) == "kwargs"
        if is_taken and inner.args:
            found.add(constant(inner.args[0]))
    return found - {None}


def configuration(package, model_type):
    """The module and the class of a model type's configuration."""
    for path in sorted((package.folder / "models").glob("*/configuration_*.py")):
        module = package.module(f"models.{path.parent.name}.{path.stem}")
        for node in module.defined.values():
            if isinstance(node, ast.ClassDef):
                for statement in node.body:
                    is_type = isinstance(statement, ast.Assign) and last_name(statement.targets[0]) == "model_type"
                    if is_type and constant(statement.value) == model_type:
                        return module, node
    raise LookupError(f"no configuration class has the model type {model_type}")


def model(package, model_type, class_name):
    module, node = configuration(package, model_type)
    folder = module.name.rsplit(".", 1)[0]
    sources = sorted((package.folder / folder.replace(".", "/")).glob("modeling_*.py"))
    modules = [package.module(f"{folder}.{path.stem}") for path in sources]
    found = next((package.find(code, class_name) for code in modules if class_name in code.defined), None)
    if not found:
        raise LookupError(f"{folder} has no class {class_name}")
    defaults, aliases, methods = fields(package, module, node)
    is_composite = "text_config" in defaults or class_name.endswith("ForConditionalGeneration")
    reader = Reader(package, follows=not is_composite)
    if is_composite:
        # The classes that are made of the whole configuration; what they are made of has a type of its own.
        for part in found[0].defined.values():
            if isinstance(part, ast.ClassDef) and node.name in annotations(part):
                reader.run(found[0], part)
    else:
        reader.run(*found)
    rope = package.module("modeling_rope_utils")
    keys = {key for key in reader.keys if not key.startswith("__")} | BASE
    if "rope_parameters" in keys and rope:
        mixin = rope.defined.get("RotaryEmbeddingConfigMixin")
        for method in [] if mixin is None else mixin.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith(("validate", "_validate", "_check")):
                reader.visit(method)
        # The mixin moves these into `rope_parameters`.
        keys |= {"rope_scaling", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}
    keys = computed(methods, keys | taken(methods))
    # An alias is the key that it stands for.
    for alias, key in aliases.items():
        if alias in keys or key in keys:
            keys |= {alias, key}
    methods_of_class = {method.name for method in methods if not any(last_name(d) == "property" for d in method.decorator_list)}
    methods_of_class |= {"get_text_config", "standardize_rope_params", "sub_configs", "to_dict"} - set(defaults)
    keys = sorted(keys - methods_of_class)
    nested = {name: sorted(reader.nested.get("rope_parameters", ())) for name in sorted(ROPE_OBJECTS & set(keys))}
    known = {**reader.defaults, **{alias: defaults.get(key) for alias, key in aliases.items()}, **defaults}
    return {"keys": {key: known.get(key) for key in keys}, "nested": nested}


def annotations(node):
    """The types that a class's methods and fields are annotated with."""
    return {last_name(inner.annotation) for inner in ast.walk(node) if isinstance(inner, (ast.arg, ast.AnnAssign)) and inner.annotation}


def main():
    folder, release, *types = sys.argv[1:]
    package = Package(folder)
    models = {}
    for pair in types:
        model_type, class_name = pair.split("=")
        models[model_type] = model(package, model_type, class_name)
    json.dump({"transformers": release, "models": models}, sys.stdout, sort_keys=True)


if __name__ == "__main__":
    main()
