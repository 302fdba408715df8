//! Where a run is, as bytes that are kept with a checkpoint.
//!
//! The step is all there is to it; the rest is for saying no to a state of something else.

use batchfs_sampler::lanes::LaneSpec;

use super::rows::TokenRows;

const MAGIC: &str = "batchfs-token-state";
const VERSION: u32 = 1;

/// The next step of a run over a token source, of all ranks together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenState {
    spec: LaneSpec,
    fingerprint: u128,
    tokens: u64,
    groups: u64,
    step: u64,
}

/// Why bytes are no state, or a state is not one of this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// They are something else, or damaged.
    #[error("these bytes are no state of a token stream: {0}")]
    Malformed(String),
    /// Of a version that is not known.
    #[error("the state has version {0}, and this batchfs knows version {VERSION}")]
    Version(u32),
    /// Of other data, or another order.
    #[error("the state is of another run: {0}")]
    Other(String),
    /// States of several ranks are at different steps.
    #[error("the states to be merged differ: {0}")]
    Apart(String),
}

impl TokenState {
    /// The state of a run over `rows` whose next step is `step`. It is the same for all ranks.
    pub fn new(rows: &TokenRows, step: u64) -> TokenState {
        let source = rows.tokens().source();
        TokenState {
            spec: LaneSpec { rank: 0, world: 1, ..*rows.lanes().spec() },
            fingerprint: source.fingerprint(),
            tokens: rows.lanes().epoch_tokens(),
            groups: source.groups().len() as u64,
            step,
        }
    }

    /// The next step.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// As bytes: a line of text.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { spec, fingerprint, tokens, groups, step } = self;
        format!(
            "{MAGIC} {VERSION} data={fingerprint:032x} tokens={tokens} row_groups={groups} spec={spec} step={step}\n"
        )
        .into_bytes()
    }

    /// The state that these bytes are.
    ///
    /// # Errors
    /// [`StateError::Malformed`], [`StateError::Version`].
    pub fn from_bytes(bytes: &[u8]) -> Result<TokenState, StateError> {
        let bad = |why: &str| StateError::Malformed(why.to_owned());
        let text = std::str::from_utf8(bytes).map_err(|_| bad("not text"))?;
        let text = text.strip_suffix('\n').ok_or_else(|| bad("cut short"))?;
        let mut words = text.split(' ');
        if words.next() != Some(MAGIC) {
            return Err(bad("they begin otherwise"));
        }
        let version = words.next().and_then(|word| word.parse().ok());
        match version.ok_or_else(|| bad("no version"))? {
            VERSION => {}
            other => return Err(StateError::Version(other)),
        }
        let mut word = |key: &str| {
            let found = words.next().and_then(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.ok_or_else(|| bad(&format!("no {key}")))
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad(text));
        let fingerprint = word("data")?;
        let state = TokenState {
            fingerprint: u128::from_str_radix(fingerprint, 16).map_err(|_| bad(fingerprint))?,
            tokens: number(word("tokens")?)?,
            groups: number(word("row_groups")?)?,
            spec: word("spec")?.parse().map_err(|e| bad(&format!("{e}")))?,
            step: number(word("step")?)?,
        };
        if words.next().is_some() || state.to_bytes() != bytes {
            return Err(bad("they end otherwise"));
        }
        Ok(state)
    }

    /// Whether this is a state of a run over `rows`, whatever the number of ranks.
    ///
    /// # Errors
    /// [`StateError::Other`] with everything that differs.
    pub fn check(&self, rows: &TokenRows) -> Result<(), StateError> {
        let now = TokenState::new(rows, self.step);
        // Room for pieces has no influence on the order.
        let order = |spec: &LaneSpec| (spec.lanes, spec.window, spec.seq_len, spec.seed);
        let mut differs = Vec::new();
        if order(&self.spec) != order(&now.spec) {
            differs.push(format!("its spec is {}, not {}", self.spec, now.spec));
        }
        if self.tokens != now.tokens || self.groups != now.groups {
            differs.push(format!(
                "its data has {} tokens in {} row groups, not {} in {}",
                self.tokens, self.groups, now.tokens, now.groups
            ));
        } else if self.fingerprint != now.fingerprint {
            differs.push(
                "its files have as many tokens, but other names, column or contents".to_owned(),
            );
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
                "rank 0 is at step {}, rank {} at step {}",
                first.step,
                at + 1,
                others[at].step
            ))),
            Some(at) => {
                Err(StateError::Apart(format!("rank {} has other data or another spec", at + 1)))
            }
        }
    }
}
