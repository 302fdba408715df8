//! Batches of token streams: rows of packed documents instead of records.

mod budget;
mod documents;
mod groups;
mod joined;
mod provenance;
mod rows;
mod state;
mod windows;

pub(crate) use documents::Documents;
pub use provenance::Provenance;
pub use rows::{StepPart, TokenFigures, TokenRows, Tokens};
pub use state::{StateError, TokenState};

pub(crate) use rows::Step;
