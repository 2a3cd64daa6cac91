//! Configuration keys of RoPE, in either spelling: `rope_parameters` and `rope_scaling`.

use crate::config::section::Section;

/// The scaling object, under either of its names.
pub(crate) fn object<'a>(config: &Section<'a>) -> Option<Section<'a>> {
    let (new, old) = (config.get("rope_parameters"), config.get("rope_scaling"));
    if new.is_some() && old.is_some() && new != old {
        config.report_inconsistency(
            "rope_scaling",
            "rope_scaling and rope_parameters differ; remove one".to_owned(),
        );
    }
    let key = if new.is_some() { "rope_parameters" } else { "rope_scaling" };
    config.section(key)
}

/// A number in the scaling object or next to it.
pub(crate) fn either(config: &Section<'_>, scaling: Option<&Section<'_>>, key: &str) -> Option<f64> {
    let read = |section: &Section<'_>| section.get(key).map(|_| section.number(key));
    let (outside, inside) = (read(config), scaling.and_then(read));
    if let (Some(outside), Some(inside)) = (outside, inside)
        && outside != inside
    {
        config.report_inconsistency(key, format!("{key} is {outside}, but {inside} in the scaling object"));
    }
    inside.or(outside)
}
