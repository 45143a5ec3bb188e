"""What is seen: labelled images, the readers that make them, and the protocol that rations them."""
