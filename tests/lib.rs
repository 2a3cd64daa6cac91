//! Helpers of the whole-pipeline tests.
