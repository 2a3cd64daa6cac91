//! The functions of the emulator on a Mac, where models run on the real GPU: nothing is counted or configured.

/// Numbers of the emulator, all 0 here.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub command_buffers: usize,
    pub dispatches: usize,
    pub barriers: usize,
    pub waits: usize,
    pub background_pipelines: usize,
    pub residency_requests: usize,
}

/// The machine, of which nothing is configured.
#[derive(Clone, Copy)]
pub struct Machine {
    pub max_buffer_length: usize,
    pub name: &'static str,
}

impl Machine {
    pub const MAC: Machine = Machine { max_buffer_length: 0, name: "" };

    pub fn named(name: &str) -> Option<Machine> {
        (name == "mac").then_some(Machine::MAC)
    }
}

pub fn machine() -> Machine {
    Machine::MAC
}

pub fn set_machine(_: Machine) {}

pub fn metallib(source: &str, _: u32) -> Vec<u8> {
    source.into()
}

pub fn emulate() {}

pub fn execute(_: bool) {}

pub fn counts() -> Counts {
    Counts::default()
}

pub fn labels() -> Vec<String> {
    Vec::new()
}

pub fn live_objects() -> std::collections::BTreeMap<String, usize> {
    std::collections::BTreeMap::new()
}

pub fn take_violations() -> Vec<String> {
    Vec::new()
}
