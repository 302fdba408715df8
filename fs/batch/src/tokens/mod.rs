//! Batches of token streams: rows of packed documents instead of records.

mod budget;
mod documents;
mod groups;
mod joined;
mod provenance;
mod rows;
mod sources;
mod state;
mod step;
mod table;
mod windows;

pub(crate) use documents::Documents;
pub use provenance::Provenance;
pub use rows::{StepPart, TokenRows};
pub use sources::{TokenFigures, Tokens};
pub use state::{StateError, TokenState};

pub(crate) use step::Step;
