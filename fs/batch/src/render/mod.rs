//! Files that are made from the bare file as a whole, and whose size depends on what is in it.

mod picture;
mod text;
mod value;

use sha2::{Digest as _, Sha256};

pub(crate) use picture::Picture;

use crate::{Error, Face, Key, Layout, Result, View};

impl View {
    /// The rendered face `key`, from `bytes`, the bare file of the same item, which has `layout`.
    ///
    /// # Errors
    /// [`Error::NoFace`] if such records have no such file, [`Error::Store`] if a step cannot be read.
    pub(crate) fn render(&self, key: Key, layout: &Layout, bytes: &[u8]) -> Result<Vec<u8>> {
        if key.face == Face::Json {
            return self.describe_tokens(key).map(String::into_bytes);
        }
        let made = match key.face {
            Face::Txt => text::render(self, key, layout, bytes).map(String::into_bytes),
            Face::Png => Picture::of(layout).and_then(|picture| picture.encode(bytes)),
            Face::Sha256 => Ok(sha256(key.number, bytes).into_bytes()),
            _ => Err("it is not rendered".to_owned()),
        };
        made.map_err(|why| Error::NoFace { item: self.name(key), why })
    }
}

/// A line of `sha256sum`, so that `sha256sum -c 17.sha256` in the folder checks the bare file.
fn sha256(number: u64, bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut line = String::with_capacity(96);
    for byte in Sha256::digest(bytes) {
        // Writing to a String cannot fail.
        let _ = write!(line, "{byte:02x}");
    }
    let _ = writeln!(line, "  {number}");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_that_of_sha256sum() {
        assert_eq!(
            sha256(17, b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  17\n"
        );
    }
}
