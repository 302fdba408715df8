use drm_fourcc::{DrmFourcc, DrmModifier};

/// How a record of uint8 is a picture to the display and graphics stack: one plane, row after row
/// from the top, without a modifier.
///
/// Colours are taken to be in the order red, green, blue, alpha. Arrays do not say it: whoever knows
/// that theirs begin with blue takes [`DrmFourcc::Rgb888`] or [`DrmFourcc::Argb8888`] instead (the
/// names begin with the highest byte of a little-endian word, so that memory has them reversed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The format of a pixel.
    pub fourcc: DrmFourcc,
    /// How pixels lie in memory; always [`DrmModifier::Linear`].
    pub modifier: DrmModifier,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from a row to the next.
    pub pitch: u32,
}

/// Pitches that importers ask for in a linear buffer, and who does.
const WANTED: [(u32, &str); 2] = [(64, "Intel's"), (256, "AMD's")];

impl Picture {
    /// A record of uint8 with this shape as a picture: `(H, W)` or `(H, W, C)` with 1, 3 or 4
    /// channels, C order.
    ///
    /// # Errors
    /// Why it is none.
    pub fn of(shape: &[u64]) -> Result<Picture, String> {
        let (height, width, channels) = match *shape {
            [h, w] => (h, w, 1),
            [h, w, c] => (h, w, c),
            _ => return Err(format!("a picture has the shape (H, W) or (H, W, C), not {shape:?}")),
        };
        let fourcc = match channels {
            1 => DrmFourcc::R8,
            3 => DrmFourcc::Bgr888,
            4 => DrmFourcc::Abgr8888,
            _ if matches!(shape, [1 | 3 | 4, ..]) => {
                return Err(format!(
                    "{shape:?} has its channels first: the graphics stack wants (H, W, C)"
                ));
            }
            n => return Err(format!("{n} channels: there are formats for 1, 3 and 4")),
        };
        let pitch = width.checked_mul(channels).and_then(|n| u32::try_from(n).ok());
        let (Some(pitch), Ok(width), Ok(height)) =
            (pitch, u32::try_from(width), u32::try_from(height))
        else {
            return Err(format!("{shape:?} is larger than a picture can be"));
        };
        if width == 0 || height == 0 {
            return Err("it has no pixels".to_owned());
        }
        Ok(Picture { fourcc, modifier: DrmModifier::Linear, width, height, pitch })
    }

    /// Where in a dma-buf the picture begins that lies at byte `at` of it, as importers count:
    /// in 32 bits.
    ///
    /// # Errors
    /// If it ends beyond them.
    pub fn offset(&self, at: u64) -> Result<u32, String> {
        let end = at.checked_add(u64::from(self.pitch) * u64::from(self.height));
        match u32::try_from(at) {
            Ok(offset) if end.is_some_and(|end| end <= 1 << 32) => Ok(offset),
            _ => Err(format!("a picture at byte {at} is beyond the 4 GiB that importers count")),
        }
    }

    /// Who is going to refuse the picture, if it begins at byte `at` of its dma-buf; `None` if
    /// nobody that is known.
    ///
    /// Drivers that copy (those of virtual displays, software) take every pitch. Those that read the
    /// memory by themselves have rules for pitch and beginning.
    pub fn caveat(&self, at: u64) -> Option<String> {
        let short: Vec<String> = WANTED
            .iter()
            .filter(|(n, _)| !self.pitch.is_multiple_of(*n))
            .map(|(n, who)| format!("{who} GPUs want a multiple of {n}"))
            .collect();
        let mut said = Vec::new();
        if !short.is_empty() {
            said.push(format!("rows are {} bytes apart: {}", self.pitch, short.join(", ")));
        }
        if !at.is_multiple_of(batchfs_region::PAGE) {
            said.push(format!("it begins at byte {at}, which is no page"));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_one_three_and_four_channels() {
        for (shape, fourcc, name, pitch) in [
            (&[2, 5][..], DrmFourcc::R8, "R8  ", 5),
            (&[2, 5, 1], DrmFourcc::R8, "R8  ", 5),
            (&[2, 5, 3], DrmFourcc::Bgr888, "BG24", 15),
            (&[2, 5, 4], DrmFourcc::Abgr8888, "AB24", 20),
        ] {
            let picture = Picture::of(shape).unwrap();
            let wanted =
                Picture { fourcc, modifier: DrmModifier::Linear, width: 5, height: 2, pitch };
            assert_eq!(picture, wanted);
            assert_eq!(fourcc.to_string(), name);
            assert_eq!(u64::from(picture.modifier), 0);
        }
    }

    #[test]
    fn what_is_no_picture_says_why() {
        for (shape, why) in [
            (&[5][..], "a picture has the shape (H, W) or (H, W, C), not [5]"),
            (
                &[3, 224, 224],
                "[3, 224, 224] has its channels first: the graphics stack wants (H, W, C)",
            ),
            (&[5, 5, 2], "2 channels: there are formats for 1, 3 and 4"),
            (&[0, 5, 3], "it has no pixels"),
            (&[5, 1 << 31, 3], "[5, 2147483648, 3] is larger than a picture can be"),
            (&[5, u64::MAX, 3], "[5, 18446744073709551615, 3] is larger than a picture can be"),
            (&[1 << 32, 5, 3], "[4294967296, 5, 3] is larger than a picture can be"),
        ] {
            assert_eq!(Picture::of(shape).unwrap_err(), why);
        }
    }

    #[test]
    fn offsets_and_pitches_that_importers_mind() {
        let good = Picture::of(&[64, 64, 4]).unwrap();
        assert_eq!((good.offset(8192), good.caveat(8192)), (Ok(8192), None));
        let last = (1u64 << 32) - 64 * 256;
        assert_eq!(good.offset(last), Ok(last as u32));
        assert!(good.offset(last + 1).unwrap_err().contains("beyond the 4 GiB"));
        assert!(good.offset(u64::MAX).is_err());
        let odd = Picture::of(&[224, 224, 3]).unwrap();
        let said = "rows are 672 bytes apart: Intel's GPUs want a multiple of 64, AMD's GPUs want a multiple of 256; \
                    it begins at byte 150528, which is no page";
        assert_eq!(odd.caveat(150_528).unwrap(), said);
    }
}
