use std::fmt;
use std::sync::Arc;

use batchfs_sampler::lanes::LaneSpec;
use batchfs_sampler::{Sampler, Spec};

use crate::tokens::TokenRows;

/// The spec of a view: of records, or of rows of tokens. Which one, the data decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViewSpec {
    /// Which records make up a batch.
    Records(Spec),
    /// How tokens are packed into rows.
    Tokens(LaneSpec),
}

impl From<Spec> for ViewSpec {
    fn from(spec: Spec) -> ViewSpec {
        ViewSpec::Records(spec)
    }
}

impl From<LaneSpec> for ViewSpec {
    fn from(spec: LaneSpec) -> ViewSpec {
        ViewSpec::Tokens(spec)
    }
}

impl fmt::Display for ViewSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewSpec::Records(spec) => spec.fmt(f),
            ViewSpec::Tokens(spec) => spec.fmt(f),
        }
    }
}

/// What makes up the batches of a view.
#[derive(Clone)]
pub(crate) enum Order {
    Records(Sampler),
    Tokens(Arc<TokenRows>),
}
