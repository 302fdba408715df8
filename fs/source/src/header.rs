//! The header of a `.npy` file, in all the dialects that are about.
//!
//! Written by hand, since what parses Python 3 literals refuses the `3L` of Python 2, and since an
//! element type must be refused by the name that the file gives it.

use batchfs_store::DType;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) descr: String,
    pub(crate) fortran: bool,
    pub(crate) shape: Vec<u64>,
}

/// Bytes before the text, with the text's length as (format version, offset of the text, length).
pub(crate) fn text_of(front: &[u8]) -> Result<(usize, usize), String> {
    let Some(front) = front.strip_prefix(b"\x93NUMPY") else {
        return Err("is not a .npy file".into());
    };
    match *front {
        [1, 0, a, b, ..] => Ok((10, u16::from_le_bytes([a, b]).into())),
        [2 | 3, 0, a, b, c, d, ..] => Ok((12, u32::from_le_bytes([a, b, c, d]) as usize)),
        [major, minor, ..] if !matches!((major, minor), (1..=3, 0)) => Err(format!(
            "is of .npy version {major}.{minor}; versions 1.0, 2.0 and 3.0 can be read"
        )),
        _ => Err("ends within its header".into()),
    }
}

/// Reads the text of a header: a Python dict of exactly these three keys, in any order.
pub(crate) fn parse(text: &[u8]) -> Result<Header, String> {
    let mut p = Parser { rest: text };
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    p.expect(b'{')?;
    while !p.eat(b'}') {
        let key = p.string()?;
        p.expect(b':')?;
        let fresh = match key.as_str() {
            "descr" => descr.replace(p.descr()?).is_none(),
            "fortran_order" => fortran.replace(p.boolean()?).is_none(),
            "shape" => shape.replace(p.shape()?).is_none(),
            _ => return Err(format!("has the unknown key {key:?} in its header")),
        };
        if !fresh {
            return Err(format!("has the key {key:?} twice in its header"));
        }
        if !p.eat(b',') {
            p.expect(b'}')?;
            break;
        }
    }
    p.skip_space();
    match (descr, fortran, shape, p.rest) {
        (Some(descr), Some(fortran), Some(shape), []) => Ok(Header { descr, fortran, shape }),
        (_, _, _, [_, ..]) => Err(p.unreadable()),
        _ => Err("lacks one of descr, fortran_order and shape in its header".into()),
    }
}

/// The element type that a `descr` stands for, and whether its bytes are the other way round;
/// `given` is what the user says it is.
pub(crate) fn dtype(descr: &str, given: Option<DType>) -> Result<(DType, bool), String> {
    let (order, kind) = match descr.split_at_checked(1) {
        Some((order @ ("<" | ">" | "|" | "="), kind)) => (order, kind),
        _ => ("", descr),
    };
    let numpy = DType::ALL.iter().copied().find(|d| d.npy_descr().is_some_and(|n| n[1..] == *kind));
    let named = || {
        let lacks = |d: &DType| d.npy_descr().is_none();
        descr.parse::<DType>().ok().filter(lacks)
    };
    let found = match numpy {
        Some(d) if order == "|" && d.size() > 1 => None,
        Some(d) => Some(d),
        None => named(),
    };
    match (found, given) {
        (Some(found), Some(given)) if found != given => {
            Err(format!("holds {found}, not {given} as was said"))
        }
        (Some(found), _) => Ok((found, order == ">" && found.size() > 1)),
        (None, given) => {
            let found = opaque(descr, kind, given)?;
            match order {
                // NumPy takes plain bytes as they are, whatever is written before them.
                ">" if found.size() > 1 => Err(format!(
                    "has elements of type {descr:?}, of which it cannot be known in which order their bytes are; save it as \"<{kind}\""
                )),
                _ => Ok((found, false)),
            }
        }
    }
}

/// Types whose name was lost when the file was saved, and those that cannot be had at all.
fn opaque(descr: &str, kind: &str, given: Option<DType>) -> Result<DType, String> {
    let size = match kind.split_at_checked(1) {
        Some(("V", n)) => n.parse::<usize>().ok(),
        _ if kind == "f1" => Some(1),
        _ => None,
    };
    let candidates: Vec<_> = DType::ALL
        .iter()
        .filter(|d| d.npy_descr().is_none() && Some(d.size()) == size)
        .map(|d| d.name())
        .collect();
    match (size, given) {
        (Some(size), Some(given)) if given.size() == size => Ok(given),
        (Some(size), Some(given)) => Err(format!(
            "has elements of {size} bytes ({descr}), which cannot be {given} with {}",
            given.size()
        )),
        (Some(_), None) if !candidates.is_empty() => Err(format!(
            "has elements of type {descr:?}, which does not say what they are; say it with --dtype, one of {}",
            candidates.join(", ")
        )),
        _ if kind.starts_with('O') => Err(
            "holds pickled Python objects, which are never loaded; save it with a numeric dtype"
                .into(),
        ),
        _ => Err(format!(
            "has elements of type {descr:?}, which cannot be read; convert it to one of {}",
            DType::ALL.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
        )),
    }
}

struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.skip_space();
        match self.rest.split_first() {
            Some((b, rest)) if *b == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.eat(byte) { Ok(()) } else { Err(self.unreadable()) }
    }

    fn unreadable(&self) -> String {
        let near: String =
            String::from_utf8_lossy(&self.rest[..self.rest.len().min(40)]).into_owned();
        format!("has a header that cannot be read, from {near:?} on")
    }

    /// Takes what `of` holds for, at least one byte.
    fn word(&mut self, of: impl Fn(&u8) -> bool) -> Result<&str, String> {
        self.skip_space();
        let n = self.rest.iter().position(|b| !of(b)).unwrap_or(self.rest.len());
        if n == 0 {
            return Err(self.unreadable());
        }
        let (word, rest) = self.rest.split_at(n);
        self.rest = rest;
        std::str::from_utf8(word).map_err(|_| "has a header that is not text".into())
    }

    fn string(&mut self) -> Result<String, String> {
        self.skip_space();
        let quote = if self.eat(b'"') {
            b'"'
        } else {
            self.expect(b'\'')?;
            b'\''
        };
        let word = self.word(|b| *b != quote && *b != b'\\')?.to_owned();
        // Not `eat`: a space belongs to the string.
        match self.rest.split_first() {
            Some((b, rest)) if *b == quote => {
                self.rest = rest;
                Ok(word)
            }
            _ => Err(self.unreadable()),
        }
    }

    fn descr(&mut self) -> Result<String, String> {
        self.skip_space();
        if matches!(self.rest.first(), Some(b'[' | b'(' | b'{')) {
            return Err(
                "has a structured dtype (named fields); save each field as a file of its own"
                    .into(),
            );
        }
        self.string()
    }

    fn boolean(&mut self) -> Result<bool, String> {
        match self.word(u8::is_ascii_alphabetic)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(format!("has fortran_order {other} in its header")),
        }
    }

    fn shape(&mut self) -> Result<Vec<u64>, String> {
        self.expect(b'(')?;
        let mut shape = Vec::new();
        while !self.eat(b')') {
            let word = self.word(u8::is_ascii_alphanumeric)?;
            // Python 2 marked long integers so.
            let digits = word.strip_suffix('L').unwrap_or(word);
            let n = digits
                .parse()
                .ok()
                .filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))
                .ok_or_else(|| format!("has {word} in its shape"))?;
            shape.push(n);
            if !self.eat(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_spacing_quotes_and_python_2_integers() {
        let want = Header { descr: "<i4".into(), fortran: false, shape: vec![3, 4] };
        for text in [
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4), }          \n",
            "{'shape': (3L, 4L), 'fortran_order': False, 'descr': '<i4'}",
            "{\"fortran_order\":False,\"descr\":\"<i4\",\"shape\":(3,4)}\n",
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_such_header_is_refused() {
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<i4', 'fortran_order': False}",
            "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': ()}",
            "{'descr': '<i4', 'fortran_order': 0, 'shape': (3,)}",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (-3,)}",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3.0,)}",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3,)} import os",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        let structured = "{'descr': [('größe', '<f4')], 'fortran_order': False, 'shape': (3,)}";
        assert!(parse(structured.as_bytes()).unwrap_err().contains("structured"));
    }

    #[test]
    fn lost_types_need_a_word_and_are_never_guessed() {
        assert_eq!(dtype("<f4", None), Ok((DType::Float32, false)));
        assert_eq!(dtype(">f4", None), Ok((DType::Float32, true)));
        assert_eq!(dtype(">u1", None), Ok((DType::UInt8, false)));
        assert_eq!(dtype("<u1", None), Ok((DType::UInt8, false)));
        assert_eq!(dtype("bfloat16", None), Ok((DType::BFloat16, false)));
        assert_eq!(dtype("float8_e4m3fn", None), Ok((DType::Float8E4M3FN, false)));
        for (descr, says) in [
            ("<V2", "bfloat16"),
            ("|V2", "--dtype"),
            ("|V1", "float8_e5m2"),
            ("<f1", "float8_e4m3fn"),
            ("int2", "int2"),
            ("|O", "pickled"),
            (">V2", "--dtype"),
            ("<U7", "<U7"),
            ("<M8[ns]", "<M8[ns]"),
            ("<f16", "<f16"),
            ("|V12", "|V12"),
            ("float32", "float32"),
            ("", "\"\""),
        ] {
            let why = dtype(descr, None).unwrap_err();
            assert!(why.contains(says), "{descr}: {why}");
        }
        assert_eq!(dtype("<V2", Some(DType::BFloat16)), Ok((DType::BFloat16, false)));
        assert_eq!(dtype("<f1", Some(DType::Float8E5M2)), Ok((DType::Float8E5M2, false)));
        assert!(dtype("<V2", Some(DType::Float8E5M2)).is_err());
        assert!(dtype(">V2", Some(DType::BFloat16)).unwrap_err().contains("order"));
        assert!(dtype("<f4", Some(DType::Int32)).unwrap_err().contains("float32"));
    }
}
