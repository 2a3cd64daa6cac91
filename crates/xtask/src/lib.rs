//! Development tasks that tests use too.

pub mod bench_peers;
pub mod member;
pub mod metal;
pub mod models;
pub mod random_model;
pub mod reference_keys;
pub mod shapes;
