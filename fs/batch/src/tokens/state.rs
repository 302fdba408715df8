//! Where a run is, as bytes that are kept with a checkpoint.
//!
//! The step is all there is to it; the rest is for saying no to a state of something else.

use std::collections::HashMap;

use batchfs_sampler::lanes::LaneSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::rows::TokenRows;

const FORMAT: &str = "batchfs-token-state";
const VERSION: u64 = 1;
/// What `step` counts.
const UNIT: &str = "steps of all ranks";
/// Characters of the checksum.
const SUM: usize = 16;

/// The next step of a run over a token source, of all ranks together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenState {
    format: String,
    version: u64,
    unit: String,
    step: u64,
    spec: String,
    column: String,
    /// The weights of a mixture.
    mix: Option<String>,
    tokens: u64,
    row_groups: u64,
    data: String,
    /// Name and fingerprint of each file.
    files: Vec<(String, String)>,
}

/// Why bytes are no state, or a state is not one of this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// They are something else, or damaged.
    #[error("these bytes are no state of a token stream: {0}")]
    Malformed(String),
    /// Of a version that is not known.
    #[error("the state has version {0}, and this batchfs knows version {VERSION}")]
    Version(u64),
    /// Of other data, or another order.
    #[error("the state is of another run: {0}")]
    Other(String),
    /// States of several ranks are at different steps.
    #[error("the states to be merged differ: {0}")]
    Apart(String),
}

fn hex(number: u128) -> String {
    format!("{number:032x}")
}

fn checksum(body: &str) -> String {
    let sum: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    sum.chars().take(SUM).collect()
}

impl TokenState {
    /// The state of a run over `rows` whose next step is `step`. It is the same for all ranks.
    pub fn new(rows: &TokenRows, step: u64) -> TokenState {
        let source = rows.tokens().source();
        let files = source.token_files().into_iter();
        TokenState {
            format: FORMAT.to_owned(),
            version: VERSION,
            unit: UNIT.to_owned(),
            step,
            spec: LaneSpec { rank: 0, world: 1, ..*rows.lanes().spec() }.to_string(),
            column: source.column().to_owned(),
            mix: rows.tokens().mix().map(ToString::to_string),
            tokens: rows.lanes().epoch_tokens(),
            row_groups: source.groups().len() as u64,
            data: hex(source.fingerprint()),
            files: files.map(|file| (file.name, hex(file.fingerprint))).collect(),
        }
    }

    /// The next step.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// As bytes: a line of JSON and a line with its checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers alone: it cannot fail.
        let body = serde_json::to_string(self).unwrap_or_default();
        format!("{body}\n{}\n", checksum(&body)).into_bytes()
    }

    /// The state that these bytes are.
    ///
    /// # Errors
    /// [`StateError::Malformed`], [`StateError::Version`].
    pub fn from_bytes(bytes: &[u8]) -> Result<TokenState, StateError> {
        let bad = |why: &str| StateError::Malformed(why.to_owned());
        let text = std::str::from_utf8(bytes).map_err(|_| bad("they are not text"))?;
        let (body, sum) = text.split_once('\n').ok_or_else(|| bad("they are cut short"))?;
        let told: serde_json::Value =
            serde_json::from_str(body).map_err(|_| bad("they are not JSON, or damaged"))?;
        if told["format"] != FORMAT {
            return Err(bad("they are of another format"));
        }
        match told["version"].as_u64() {
            Some(VERSION) => {}
            Some(other) => return Err(StateError::Version(other)),
            None => return Err(bad("they have no version")),
        }
        if sum.strip_suffix('\n') != Some(checksum(body).as_str()) {
            return Err(bad("they are damaged or cut short, as their checksum says"));
        }
        let state: TokenState =
            serde_json::from_value(told).map_err(|e| StateError::Malformed(e.to_string()))?;
        if state.unit != UNIT {
            return Err(bad(&format!("it counts {:?}, not {UNIT:?}", state.unit)));
        }
        state.order()?;
        Ok(state)
    }

    fn order(&self) -> Result<LaneSpec, StateError> {
        self.spec.parse().map_err(|e| StateError::Malformed(format!("{e}")))
    }

    /// Whether this is a state of a run over `rows`, whatever the number of ranks.
    ///
    /// # Errors
    /// [`StateError::Other`] with everything that differs.
    pub fn check(&self, rows: &TokenRows) -> Result<(), StateError> {
        let now = TokenState::new(rows, self.step);
        let mut differs = Vec::new();
        // Room for pieces, the type given out and ranks have no influence on the order.
        let (old, new) = (self.order()?, now.order()?);
        for (key, old, new) in [
            ("lanes", old.lanes, new.lanes),
            ("window", old.window, new.window),
            ("seq_len", old.seq_len, new.seq_len),
            ("seed", old.seed, new.seed),
        ] {
            if old != new {
                differs.push(format!("{key} is {old} in the state and {new} here"));
            }
        }
        if self.column != now.column {
            let (old, new) = (&self.column, &now.column);
            differs.push(format!("the column is {old:?} in the state and {new:?} here"));
        }
        if self.mix != now.mix {
            let told = |mix: &Option<String>| mix.clone().unwrap_or_else(|| "none".to_owned());
            let (old, new) = (told(&self.mix), told(&now.mix));
            differs.push(format!("the mix is {old} in the state and {new} here"));
        }
        let counts = (self.tokens, self.row_groups) == (now.tokens, now.row_groups);
        if self.files != now.files {
            differs.push(changes(&self.files, &now.files));
        } else if counts && self.data != now.data && differs.is_empty() {
            differs.push("the data has as many tokens, but is other data".to_owned());
        } else if !counts {
            differs.push(format!(
                "the data has {} tokens in {} row groups in the state, and {} in {} here",
                self.tokens, self.row_groups, now.tokens, now.row_groups
            ));
        }
        match differs.is_empty() {
            true => Ok(()),
            false => Err(StateError::Other(differs.join("; "))),
        }
    }

    /// Joins the states of several ranks, which have to be equal.
    ///
    /// # Errors
    /// [`StateError::Apart`] with the first two that differ, or if there are none.
    pub fn merge(parts: &[TokenState]) -> Result<TokenState, StateError> {
        let Some((first, others)) = parts.split_first() else {
            return Err(StateError::Apart("there are none".to_owned()));
        };
        match others.iter().position(|part| part != first) {
            None => Ok(first.clone()),
            Some(at) if others[at].step != first.step => Err(StateError::Apart(format!(
                "part 0 is at step {}, part {} at step {}",
                first.step,
                at + 1,
                others[at].step
            ))),
            Some(at) => {
                Err(StateError::Apart(format!("part {} is of other data or settings", at + 1)))
            }
        }
    }
}

/// What happened to the files between two lists, each of names in the order of the dataset: the
/// first one of each kind.
fn changes(old: &[(String, String)], new: &[(String, String)]) -> String {
    let by_name =
        |files: &[(String, String)]| -> HashMap<String, String> { files.iter().cloned().collect() };
    let (before, now) = (by_name(old), by_name(new));
    let missing = |from: &[(String, String)], of: &HashMap<String, String>| -> Vec<String> {
        from.iter().filter(|(name, _)| !of.contains_key(name)).map(|(n, _)| n.clone()).collect()
    };
    let rewritten: Vec<String> = new
        .iter()
        .filter(|(name, print)| before.get(name).is_some_and(|other| other != print))
        .map(|(name, _)| name.clone())
        .collect();
    let kinds = [
        (missing(old, &now), "is gone"),
        (missing(new, &before), "is new"),
        (rewritten, "was written anew"),
    ];
    let told: Vec<String> = kinds
        .iter()
        .filter_map(|(names, what)| {
            let first = names.first()?;
            Some(match names.len() {
                1 => format!("{first} {what}"),
                n => format!("{first} {what} (the first of {n})"),
            })
        })
        .collect();
    format!("the data has changed: {}", told.join(", "))
}
