"""Teaching a tagger by marks: photos looked at once, marks on disk, and one label solved for after each of them."""
