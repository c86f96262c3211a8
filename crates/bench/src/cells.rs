//! Plots made of characters, for a terminal: what plotters draws on, with a character for a pixel.

use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, rasterizer,
};
use std::convert::Infallible;

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

/// A page of characters.
pub(crate) struct Cells {
    width: u32,
    rows: Vec<Vec<char>>,
    /// The character for each colour that counts.
    letters: Vec<((u8, u8, u8), char)>,
}

impl Cells {
    pub(crate) fn new(width: u32, height: u32, letters: Vec<((u8, u8, u8), char)>) -> Self {
        Self { width, rows: vec![vec![' '; width as usize]; height as usize], letters }
    }

    /// The lines, without spaces at their ends.
    pub(crate) fn text(&self) -> String {
        self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
    }

    fn put(&mut self, (x, y): BackendCoord, what: char) {
        let cell = usize::try_from(x).ok().zip(usize::try_from(y).ok());
        if let Some(cell) = cell.and_then(|(x, y)| self.rows.get_mut(y)?.get_mut(x)) {
            *cell = what;
        }
    }

    fn letter(&self, color: BackendColor) -> Option<char> {
        self.letters.iter().find(|(rgb, _)| *rgb == color.rgb).map(|(_, letter)| *letter)
    }
}

impl DrawingBackend for &mut Cells {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.rows.len() as u32)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    /// What a line covers less than half is left to the cell beside it.
    fn draw_pixel(&mut self, at: BackendCoord, color: BackendColor) -> Drawn {
        if let Some(letter) = self.letter(color).filter(|_| color.alpha > 0.5) {
            self.put(at, letter);
        }
        Ok(())
    }

    /// A line of a colour that counts is made of its letter, an axis of strokes. What is pale, as the mesh, is left out.
    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        let color = style.color();
        if self.letter(color).is_some() {
            return rasterizer::draw_line(self, from, to, style);
        }
        if color.rgb == (0, 0, 0) && color.alpha > 0.5 {
            let stroke = if from.0 == to.0 { '|' } else { '-' };
            for x in from.0.min(to.0)..=from.0.max(to.0) {
                (from.1.min(to.1)..=from.1.max(to.1)).for_each(|y| self.put((x, y), stroke));
            }
        }
        Ok(())
    }

    fn draw_rect<S: BackendStyle>(&mut self, _: BackendCoord, _: BackendCoord, _: &S, _: bool) -> Drawn {
        Ok(())
    }

    /// A point of a line.
    fn draw_circle<S: BackendStyle>(&mut self, center: BackendCoord, _: u32, style: &S, _: bool) -> Drawn {
        self.draw_pixel(center, style.color())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        _: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        Ok((text.chars().count() as u32, 1))
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        let width = text.chars().count() as i32;
        let left = match style.anchor().h_pos {
            HPos::Left => at.0,
            HPos::Center => at.0 - width / 2,
            HPos::Right => at.0 - width,
        };
        let top = if matches!(style.anchor().v_pos, VPos::Bottom) { at.1 - 1 } else { at.1 };
        for (offset, what) in (0..).zip(text.chars()) {
            self.put(((left + offset).max(0), top), what);
        }
        Ok(())
    }
}
