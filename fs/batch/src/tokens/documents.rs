use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use batchfs_store::{Error, Result, Schema, Stream};

use super::sources::Tokens;

/// The documents of a token source as records. Their lengths are known only when they are read.
pub(crate) struct Documents {
    tokens: Arc<Tokens>,
    schema: Schema,
    origin: PathBuf,
}

impl Documents {
    pub(crate) fn new(tokens: Arc<Tokens>) -> Documents {
        let schema = Schema::ragged(tokens.source().dtype(), 1);
        let origin = tokens.source().origin().into();
        Documents { tokens, schema, origin }
    }

    /// Calls `with` with the tokens of each document.
    fn each(&self, ids: &[u64], mut with: impl FnMut(&[i32]) -> Result<()>) -> Result<()> {
        let len = self.len();
        for &record in ids {
            if record >= len {
                return Err(Error::NoSuchRecord { path: self.origin.clone(), record, len });
            }
            let (group, place) = self.tokens.find(record);
            let pinned = self.tokens.groups().pin(&[group], &[])?;
            let found = pinned.get(group).and_then(|group| {
                let from = group.lengths.get(..place)?.iter().map(|&n| n as usize).sum::<usize>();
                group.tokens.get(from..from + *group.lengths.get(place)? as usize)
            });
            let why = || "a row group is shorter than its index says".to_owned();
            with(found.ok_or_else(|| Error::BadStore { path: self.origin.clone(), why: why() })?)?;
        }
        Ok(())
    }
}

impl Stream for Documents {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.tokens.documents()
    }

    fn payload_bytes(&self) -> u64 {
        self.tokens.source().groups().iter().map(|group| group.tokens * 4).sum()
    }

    fn gather(&self, ids: &[u64], mut out: &mut [u8]) -> Result<()> {
        self.each(ids, |tokens| {
            let Some((now, later)) =
                std::mem::take(&mut out).split_at_mut_checked(4 * tokens.len())
            else {
                let why = "the documents do not fit into the buffer".to_owned();
                return Err(Error::Invalid { path: self.origin.clone(), why });
            };
            // Little-endian, as the host is: the store builds on no other.
            now.copy_from_slice(bytemuck::cast_slice(tokens));
            out = later;
            Ok(())
        })
    }

    fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        let mut at = out.iter_mut();
        self.each(ids, |tokens| {
            if let Some(place) = at.next() {
                *place = tokens.len() as u64;
            }
            Ok(())
        })
    }

    fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        self.elements(ids, out)
    }

    fn origin(&self) -> &Path {
        &self.origin
    }

    fn modified(&self) -> SystemTime {
        self.tokens.source().modified()
    }
}
