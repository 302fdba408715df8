//! Batches of token streams: rows of packed documents instead of records.

mod budget;
mod documents;
mod groups;
mod joined;
mod rows;
mod state;
mod table;
mod windows;

pub(crate) use documents::Documents;
pub use rows::{Provenance, StepPart, TokenFigures, TokenRows, Tokens};
pub use state::{StateError, TokenState};

pub(crate) use rows::Step;
