//! Metal.
