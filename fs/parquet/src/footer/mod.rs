//! What a footer, and the headers of pages, have to be before the library decodes them.
//!
//! The library goes down a schema by recursion, makes room for as many fields as a group says that it has, and
//! copies the names above each column for it: a small file can take the whole stack or all memory, and neither
//! is an error that somebody could catch. So the bytes are gone through here first, field by field as the
//! library does, with types that have to be those of the format: else the library would see other numbers
//! than were looked at here.

mod format;
mod pages;

pub(crate) use self::pages::check_pages;

use self::format::{CHILDREN, ELEMENT, FILE, Fields, Kind, NAME};
use Kind::{Binary, Bool, Double, I8, I16, I32, I64, List, Schema, Struct};

/// Groups in groups.
const DEEPEST: usize = 100;
/// Bytes of the paths of all columns.
const PATHS: u64 = 64 << 20;
/// Entries of a list of structs, for which the library makes room at once.
const ENTRIES: u64 = 4 << 20;
/// Structs in structs that the library does not know, as deep as it skips them.
const SKIPPED: u32 = 64;

/// Says no to a footer that the library cannot be given.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn check(footer: &[u8]) -> Result<(), String> {
    let mut walk = Walk { rest: footer, skips: footer.len() as u64 };
    walk.fields(FILE, &mut |_, _| {})
}

struct Walk<'a> {
    rest: &'a [u8],
    /// Entries of lists that may still be skipped: those of booleans take no bytes.
    skips: u64,
}

fn damaged() -> String {
    "its footer cannot be understood".to_owned()
}

impl Walk<'_> {
    /// Goes through a struct, and calls `seen` with the numbers of its fields and their values: of bytes
    /// how many there are, and of what is neither these nor an integer 0.
    fn fields(&mut self, fields: Fields, seen: &mut dyn FnMut(i16, i64)) -> Result<(), String> {
        let mut last = 0i16;
        while let Some((code, id)) = self.field(last)? {
            last = id;
            let Some((_, kind)) = fields.iter().find(|(number, _)| *number == id) else {
                self.skip(code, SKIPPED)?;
                continue;
            };
            if !kind.is(code) {
                return Err(damaged());
            }
            // The value of a boolean is in its type.
            let value = if matches!(kind, Bool) { 0 } else { self.value(kind)? };
            seen(id, value);
        }
        Ok(())
    }

    /// Type and number of the next field; none at the end of the struct.
    fn field(&mut self, last: i16) -> Result<Option<(u8, i16)>, String> {
        let head = self.byte()?;
        let (delta, code) = (i16::from(head >> 4), head & 15);
        if code == 0 {
            return Ok(None);
        }
        let id = match delta {
            0 => self.number()? as i16,
            _ => last.checked_add(delta).ok_or_else(damaged)?,
        };
        Ok(Some((code, id)))
    }

    fn value(&mut self, kind: &Kind) -> Result<i64, String> {
        match kind {
            Bool | I8 => self.byte().map(i64::from),
            I16 | I32 | I64 => self.number(),
            Double => self.pass(8),
            Binary => self.binary(),
            Struct(fields) => self.fields(fields, &mut |_, _| {}).map(|()| 0),
            Schema => self.schema().map(|()| 0),
            List(of) => {
                for _ in 0..self.list(of)? {
                    self.value(of)?;
                }
                Ok(0)
            }
        }
    }

    /// The head of a list: how many entries it has.
    fn list(&mut self, of: &Kind) -> Result<u64, String> {
        let (code, count) = self.list_head()?;
        if count > 0 && !of.is(code) {
            return Err(damaged());
        }
        if matches!(of, Struct(_)) && count > ENTRIES {
            return Err(format!(
                "its footer has a list of {count} entries, and at most {ENTRIES} are supported"
            ));
        }
        Ok(count)
    }

    fn list_head(&mut self) -> Result<(u8, u64), String> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => count.into(),
        };
        match count > self.rest.len() as u64 {
            true => Err(damaged()),
            false => Ok((head & 15, count)),
        }
    }

    /// The schema: a tree, whose nodes come one after the other, each with the number of its children.
    fn schema(&mut self) -> Result<(), String> {
        let count = self.list(&Struct(ELEMENT))?;
        // Groups around the node that comes next: children that are still to come, and bytes of the path.
        let mut around: Vec<(u64, u64)> = Vec::new();
        let (mut owed, mut paths) = (0, 0u64);
        for left in (0..count).rev() {
            let (mut name, mut children) = (0, 0);
            self.fields(ELEMENT, &mut |id, value| match id {
                NAME => name = value as u64,
                CHILDREN => children = value as i32,
                _ => {}
            })?;
            let mut path = name + size_of::<String>() as u64;
            if let Some((siblings, above)) = around.last_mut() {
                *siblings -= 1;
                owed -= 1;
                path += *above;
            }
            let own = u64::try_from(children).map_err(|_| damaged())?;
            if own > left - owed {
                return Err(format!(
                    "a group of its schema says that it has {own} fields, and the schema has only {} more",
                    left - owed
                ));
            }
            if own > 0 {
                around.push((own, path));
                owed += own;
            } else {
                paths += path;
            }
            if around.len() > DEEPEST {
                return Err(format!(
                    "its schema has groups in groups, and more than {DEEPEST} levels of them are not supported"
                ));
            }
            if paths > PATHS {
                return Err(format!(
                    "the names in its schema, with those of the groups around each column, take more than {PATHS} bytes, which is not supported"
                ));
            }
            while around.pop_if(|(siblings, _)| *siblings == 0).is_some() {}
        }
        Ok(())
    }

    fn skip(&mut self, code: u8, depth: u32) -> Result<(), String> {
        let deeper = depth.checked_sub(1).ok_or_else(damaged)?;
        match code {
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => drop(self.pass(8)?),
            8 => drop(self.binary()?),
            9 | 10 => {
                let (code, count) = self.list_head()?;
                self.skip_entries(count)?;
                for _ in 0..count {
                    self.skip(code, deeper)?;
                }
            }
            11 => {
                let count = self.varint()?;
                self.skip_entries(count)?;
                let codes = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.skip(codes >> 4, deeper)?;
                    self.skip(codes & 15, deeper)?;
                }
            }
            12 => {
                while let Some((code, _)) = self.field(0)? {
                    self.skip(code, deeper)?;
                }
            }
            13 => drop(self.pass(16)?),
            _ => return Err(damaged()),
        }
        Ok(())
    }

    fn skip_entries(&mut self, count: u64) -> Result<(), String> {
        self.skips = self.skips.checked_sub(count).ok_or_else(damaged)?;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, String> {
        let (&byte, rest) = self.rest.split_first().ok_or_else(damaged)?;
        self.rest = rest;
        Ok(byte)
    }

    fn pass(&mut self, bytes: u64) -> Result<i64, String> {
        let bytes = usize::try_from(bytes).map_err(|_| damaged())?;
        self.rest = self.rest.get(bytes..).ok_or_else(damaged)?;
        Ok(bytes as i64)
    }

    fn binary(&mut self) -> Result<i64, String> {
        let len = self.varint()?;
        self.pass(len)
    }

    /// As many bits as a number has; the format's writers use no more.
    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged())
    }

    fn number(&mut self) -> Result<i64, String> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }
}
