"""What a reader sees of records: tables, pictures, README, comparisons."""
